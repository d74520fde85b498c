"""The `steelyard` command: runs a room's verb and turns errors into a line and an exit code.

The overview is printed here and only the room that was asked for is imported, so `steelyard --help`
stays fast.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import __version__
from steelyard.errors import ConfigError, SteelyardError

if TYPE_CHECKING:
    import cyclopts
    from rich.console import Console

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": (
        "quickstart:quickstart",
        "Weigh this machine end to end: forecast, train, serve, check, report.",
    ),
    "calibrate": (
        "calibrate:calibrate",
        "Measure this machine; stored as the catalog record this-machine.",
    ),
    "catalog": (
        "catalog:app",
        "Accelerators, clusters, sites and architectures, each with its source.",
    ),
    "laws": ("laws:app", "Fit scaling laws to measured points and decide with them."),
    "cost": ("cost:app", "Time, memory, energy and money of training and serving a model."),
    "plan": ("plan:app", "Choose model size, layout and machines for a budget."),
    "trace": ("trace:app", "Look at traces of requests, model them, and scale them."),
    "sim": ("sim:app", "Replay machines in virtual time, such as a row on one power budget."),
    "data": ("data:app", "Clean, deduplicate, tokenize and pack text."),
    "train": ("train:app", "Train a model from a recipe; a killed run continues."),
    "serve": ("serve:app", "Serve a model over an OpenAI-compatible API, or replay a trace."),
    "retrieve": ("retrieve:app", "Build indexes of vectors, search and tune them."),
    "operate": ("operate:app", "Forecast what is watched, and act on it: replicas, power, shards."),
    "chat": ("chat:chat", "Talk to a model in the terminal."),
    "runs": ("runs:app", "List, compare, check and export what was run."),
    "papers": ("papers:papers", "The papers behind each component, and what works."),
}
"""Command name to (module and object under `steelyard.cli`, one line of help)."""


def _overview() -> str:
    """Return the help of the whole command."""
    rows = "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    return (
        "Usage: steelyard COMMAND [VERB] [OPTIONS]\n\nWeigh big AI work with small means: "
        "forecast, plan, run, check.\n\n"
        f"Commands:\n{rows}\n\nOptions:\n"
        "  --help                        This page; `steelyard COMMAND --help` for one command.\n"
        "  --version                     The version.\n"
        "  --debug                       Show the traceback of an error.\n"
        "  --install-completion [SHELL]  Complete commands and options in bash, zsh or fish.\n\n"
        "Start with: steelyard quickstart\n"
    )


def _run(words: list[str]) -> int:
    """Run one command line and return its exit code; an unknown command is refused."""
    if not words or words[0] in ("--help", "-h", "help"):
        sys.stdout.write(_overview())
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"{__version__}\n")
        return 0
    if words[0] == "--install-completion":
        return _install_completion(words[1:])
    if words[0] not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`steelyard --help` lists the commands"
        raise ConfigError(f"no command {words[0]!r}", hint=hint)
    import cyclopts

    app = _app(words[:1])
    try:
        return int(
            app(
                words,
                console=_help_console(words),
                exit_on_error=False,
                print_error=False,
                result_action="return_int_as_exit_code_else_zero",
            )
        )
    except cyclopts.CycloptsError as error:
        verb = " ".join(error.command_chain or words[:1])
        raise ConfigError(
            " ".join(str(error).split()), hint=f"`steelyard {verb} --help` lists the options"
        ) from error


def _help_console(words: list[str]) -> "Console | None":
    """Make the console that help is printed on; other answers have none of it."""
    if not {"--help", "-h"} & {*words}:
        return None
    # One that the application kept would colour later calls by where the first was printed.
    from rich.console import Console

    return Console()


def _app(names: Iterable[str]) -> "cyclopts.App":
    """Make the application with some of its commands; each room is imported when it is used."""
    import cyclopts

    app = cyclopts.App(
        name="steelyard",
        version=__version__,
        help_format="plaintext",
        # Else Ctrl-C would end without a word of how to go on.
        suppress_keyboard_interrupt=False,
    )
    for name in names:
        # Its help is what its own docstring says, example included.
        app.command(f"steelyard.cli.{COMMANDS[name][0]}", name=name)
    return app


def _install_completion(words: list[str]) -> int:
    """Write the completion of one shell, that of the session when none is named."""
    shells = ("bash", "zsh", "fish")
    shell = words[0] if words else Path(os.environ.get("SHELL", "")).name
    if shell not in shells:
        raise ConfigError(
            f"no completion for the shell {shell!r}",
            hint=f"name one: steelyard --install-completion {'|'.join(shells)}",
        )
    place = _app(COMMANDS).install_completion(shell=shell)
    sys.stdout.write(f"{shell} completes steelyard from its next start: {place}\n")
    return 0


def _print_error(error: SteelyardError, words: list[str]) -> None:
    """Print the error as one red line and its hint as a second, on standard error."""
    from rich.console import Console
    from rich.markup import escape

    message, hint = _in_flags(error, words)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(message)}")
    if hint:
        console.print(f"[dim]  {escape(hint)}[/]")


def _in_flags(error: SteelyardError, words: list[str]) -> tuple[str, str]:
    """Return message and hint with fields named as the flags that set them."""
    from steelyard.cli.flags import flag_name

    # A switch that a hint names as Python writes it, such as drop_invalid=True.
    hint = re.sub(r"\b(\w+)=True\b", lambda found: f"--{flag_name(found[1])}", error.hint)
    message = str(error)
    for part in error.parts or (error,):
        name = part.field
        flag = f"--{flag_name(name)}"
        # A value that was not typed comes from a file, where the field's own name stands.
        if name and any(word.partition("=")[0] == flag for word in words):
            # Whole words alone: the name may end another one, or be a letter of any word.
            whole = re.compile(rf"(?<![\w-]){re.escape(name)}(?!\w)")
            message, hint = whole.sub(flag, message), whole.sub(flag, hint)
    return message, hint


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The exit code is 0 when all is well, 1 for an infeasible goal or a failed check, 2 for bad input
    and 130 after Ctrl-C.

    Args:
        arguments: words after `steelyard`; None for the process's own. `--debug` anywhere shows the
            traceback of an error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    # A terminal that knows only ASCII gets question marks for the rest, not an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = _run(words)
        # What is still in the buffer may meet a full disk: better here than after the verdict.
        sys.stdout.flush()
    except SteelyardError as error:
        if debug:
            raise
        _print_error(error, words)
        code = error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to continue\n")
        code = 130
    except BrokenPipeError:
        # The reader, such as `head`, has enough: without this Python complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if debug:
            raise
        _print_error(_of_system(error), words)
        if error.errno == errno.ENOSPC:
            # What could not be written would be tried once more at the exit, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 2
    raise SystemExit(code)


def _of_system(error: OSError) -> SteelyardError:
    """Return an error of the operating system in the package's words."""
    reason = error.strerror or str(error)
    if error.filename is None:
        is_full = error.errno == errno.ENOSPC
        hint = "free some and try again" if is_full else "run it with --debug to see where"
        return SteelyardError(f"{reason[:1].lower()}{reason[1:]}", hint=hint)
    return SteelyardError(
        f"cannot use {error.filename}: {reason[:1].lower()}{reason[1:]}",
        hint="give a place that can be read and written",
    )
