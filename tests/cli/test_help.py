"""The help of every verb: an example, a sentence for each option, and nothing heavy to load."""

import subprocess
import sys

import pytest

from steelyard.cli.main import COMMANDS, _app

ROOMS = ("cost", "plan")


def verbs():
    """Return the words and the application of every verb."""
    whole = _app(COMMANDS)
    for name in COMMANDS:
        yield from below((name,), whole[name])


def below(words, app):
    """Yield a verb and those under it, but what only groups others."""
    inner = [word for word in app if not word.startswith("-")]
    if app.default_command or not inner:
        yield words, app
    for word in inner:
        if app[word].show:
            yield from below((*words, word), app[word])


@pytest.fixture(scope="module")
def found():
    return dict(verbs())


def sentences(verb):
    """Return the help of every option by its name."""
    arguments = verb.assemble_argument_collection(parse_docstring=True)
    return {
        item.name: " ".join((item.parameter.help or "").split())
        for item in arguments
        if item.show and not item.children
    }


def test_every_option_has_a_sentence_of_its_own(found):
    assert len(found) > 30
    for words, verb in found.items():
        told = sentences(verb)
        assert [name for name, text in told.items() if not text] == [], words
        repeated = [text for text in told.values() if list(told.values()).count(text) > 1]
        assert repeated == [], words


def test_every_help_has_an_example(found):
    lacking = [
        " ".join(words)
        for words, verb in found.items()
        if f"Example: steelyard {' '.join(words)}" not in " ".join(str(verb.help).split())
    ]
    assert lacking == []


@pytest.mark.parametrize("words", [("cost", "--help"), ("cost", "train", "--help")], ids=" ".join)
def test_the_help_of_costs_loads_no_numpy(words):
    code = (
        "import sys\nfrom steelyard.cli.main import main\n"
        f"sys.argv = {['steelyard', *words]!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sorted({'numpy', 'torch', 'sqlalchemy', 'polars'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Example: steelyard cost" in run.stdout or "longcontext" in run.stdout
    assert run.stderr.split() == []
