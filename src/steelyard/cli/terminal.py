"""The chat's terminal: reads questions and /commands, and shows answers as they arrive."""

import contextlib
import difflib
import math
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape
from rich.text import Text

from steelyard.errors import ConfigError, SteelyardError
from steelyard.files import user_dir
from steelyard.serve.client.conversation import Conversation, Reply
from steelyard.serve.client.models import served_models
from steelyard.units import pretty_duration

__all__ = ["Terminal", "left_out_notice"]

_HELP = (
    ("/help", "this list"),
    ("/clear", "forget what was said"),
    ("/system [TEXT]", "set the system prompt; without text: show it; '-' removes it"),
    ("/model [NAME]", "choose another model of the server; without a name: list them"),
    (
        "/params [NAME=VALUE ...]",
        "set fields of the request, such as temperature=0.7; NAME= removes one",
    ),
    ("/retry", "ask the last question again"),
    ("/save FILE", "save the conversation"),
    ("/load FILE", "continue a saved one"),
    ("/quit", "leave; Ctrl-D does too"),
)
_HISTORY = 1000


class Terminal:
    """A conversation at the terminal.

    Attributes:
        talk: conversation with its server.
        console: console that shows the answers.
    """

    def __init__(self, talk: Conversation, console: Console | None = None) -> None:
        """Start with a conversation.

        Args:
            talk: conversation with its server.
            console: console for the answers, standard output by default.
        """
        self.talk = talk
        self.console = console or Console(highlight=False)
        self._left_out = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "clear": self._clear,
            "system": self._system,
            "model": self._model,
            "params": self._params,
            "retry": self._retry,
            "save": self._save,
            "load": self._load,
        }

    def run(self) -> None:
        """Read and answer until the user leaves; the input history outlives the chat."""
        self.console.print(
            f"[bold]{self.talk.model or 'model'}[/] at {self.talk.endpoint.url}   [dim]/help, "
            f"Ctrl-D to leave[/]"
        )
        with _history():
            while (line := self._read()) is not None:
                if not self.take(line):
                    return

    def take(self, line: str) -> bool:
        """Run a line: a /command, or a question.

        Args:
            line: line as typed; '//' at its start asks a question that begins with '/'.

        Returns:
            False when the user leaves.
        """
        line = line.strip()
        try:
            if line.startswith("/") and not line.startswith("//"):
                name, _, rest = line[1:].partition(" ")
                if name in ("quit", "exit", "q"):
                    return False
                self._command(name)(rest.strip())
            elif line:
                self._ask(line.removeprefix("/") if line.startswith("//") else line)
        except SteelyardError as error:
            self._fail(error)
        except KeyboardInterrupt:
            self.console.print()
        return True

    def _read(self) -> str | None:
        """Read a line, and those after it while it ends with a backslash; None at the end."""
        lines: list[str] = []
        prompt = "> "
        while True:
            try:
                line = input(prompt)
            except EOFError:
                self.console.print()
                return None
            except KeyboardInterrupt:
                self.console.print("\n[dim]Ctrl-D or /quit to leave[/]")
                lines, prompt = [], "> "
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
            prompt = ". "

    def _command(self, name: str) -> Callable[[str], None]:
        """Return a command; an unknown one is refused with the nearest name."""
        if name in self._commands:
            return self._commands[name]
        near = difflib.get_close_matches(name, [*self._commands, "quit"], n=1)
        raise ConfigError(
            f"no command /{name}", hint=f"did you mean /{near[0]}?" if near else "/help lists them"
        )

    def _fail(self, error: SteelyardError) -> None:
        """Show an error as one red line and its hint."""
        self.console.print(f"[bold red]error:[/] {escape(str(error))}")
        if error.hint:
            self.console.print(f"[dim]  {escape(error.hint)}[/]")

    def _ask(self, question: str) -> None:
        """Ask; show the end of the answer while it arrives, then all of it as markdown."""
        pieces: list[str] = []
        with Live(
            Text("…", style="dim"), console=self.console, transient=True, refresh_per_second=12
        ) as live:

            def show(text: str) -> None:
                pieces.append(text)
                # A live display taller than the screen would leave copies of itself in the scroll.
                rows = max(self.console.height - 2, 4)
                live.update(Text("\n".join("".join(pieces).splitlines()[-rows:])))

            reply = self.talk.ask(question, show)
        empty = Text("(no text)", style="dim")
        self.console.print(Markdown(reply.text) if reply.text.strip() else empty)
        if reply.left_out > self._left_out:
            self.console.print(left_out_notice(reply, self.talk.context), style="dim")
        self._left_out = reply.left_out
        self._footer(reply)

    def _footer(self, reply: Reply) -> None:
        """Print the length and speed of an answer."""
        words = f"{reply.output_tokens} tokens"
        words += f" · {reply.tokens_per_s:.1f} tokens/s" if reply.tokens_per_s else ""
        if not math.isnan(reply.ttft_s):  # NaN when no token arrived
            words += f" · first after {pretty_duration(reply.ttft_s)}"
        words += " · stopped" if reply.is_stopped else ""
        words += " · cut at the longest length" if reply.is_cut else ""
        self.console.print(f"[dim]{words}[/]\n")

    def _help(self, _: str) -> None:
        """List the commands."""
        for name, words in _HELP:
            self.console.print(f"  [bold]{escape(name):<26}[/] {escape(words)}")
        self.console.print(
            "  [dim]a line that ends with a backslash continues in the next one; // starts a "
            "question that begins with /[/]"
        )

    def _clear(self, _: str) -> None:
        """Forget what was said."""
        self.talk.clear()
        self.console.print("[dim]forgotten[/]")

    def _system(self, text: str) -> None:
        """Show, set or remove the system prompt."""
        if text:
            self.talk.set_system("" if text == "-" else text)
        self.console.print(self.talk.system or "(no system prompt)", style="dim", markup=False)

    def _model(self, name: str) -> None:
        """List the server's models or choose one."""
        served = {item.id: item for item in served_models(self.talk.endpoint)}
        models = list(served)
        if name:
            if models and name not in models:
                raise ConfigError(
                    f"the server has no model {name!r}", hint=f"it has {', '.join(models[:8])}"
                )
            self.talk.model = name
            self.talk.context = (served[name].max_model_len or 0) if name in served else 0
        for item in models or [self.talk.model]:
            self.console.print(f"  {'*' if item == self.talk.model else ' '} {item}", markup=False)

    def _params(self, text: str) -> None:
        """Show or set fields of the request."""
        for part in text.split():
            self.talk.set_parameter(part)
        for name, value in self.talk.parameters.items():
            self.console.print(f"  {name} = {value!r}", markup=False)
        if not self.talk.parameters:
            self.console.print("[dim](the server's own)[/]")

    def _retry(self, _: str) -> None:
        """Ask the last question again; the conversation stays as it was when that fails."""
        before = list(self.talk.messages)
        question = self.talk.take_back()
        try:
            self._ask(question)
        except SteelyardError:
            self.talk.messages = before
            raise

    def _save(self, text: str) -> None:
        """Save the conversation in a file."""
        path = _file(text, "/save")
        self.talk.save(path)
        self.console.print(f"saved in {path}", style="dim", markup=False)

    def _load(self, text: str) -> None:
        """Continue a saved conversation."""
        self.talk.load(_file(text, "/load"))
        self.console.print(f"{len(self.talk.messages)} messages", style="dim")


def left_out_notice(reply: Reply, context: int) -> str:
    """Say in a line which turns the model no longer sees, empty when it sees all.

    Args:
        reply: an answer.
        context: tokens of the model's context, 0 when unknown.

    Returns:
        The line.
    """
    if not reply.left_out:
        return ""
    size = f" of {context} tokens" if context else ""
    turns = "turn is" if reply.left_out == 1 else f"{reply.left_out} turns are"
    return f"(the context{size} is full: the oldest {turns} left out)"


def _file(text: str, command: str) -> Path:
    """Return the path that a command names."""
    if not text:
        raise ConfigError(f"{command} needs a file", hint=f"{command} chat.json")
    return Path(text).expanduser()


@contextlib.contextmanager
def _history():
    """Let the terminal's line editor remember questions between chats, where there is one."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = user_dir() / "chat-history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
        sys.stdout.flush()
