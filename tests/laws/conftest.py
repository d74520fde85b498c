"""What the tests of the law verbs share."""

import pytest

from steelyard.cli.main import main


@pytest.fixture
def run(capsys):
    """Call a verb of `steelyard laws` and return what it printed, or its error."""

    def call(*words, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["laws", *map(str, words)])
        captured = capsys.readouterr()
        assert (stop.value.code or 0) == code, captured.err
        return captured.out if code == 0 else captured.err

    return call
