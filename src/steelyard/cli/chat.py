"""`steelyard chat`: talk to a model in the terminal."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from steelyard.serve.client.conversation import Conversation

__all__ = ["chat"]


def chat(
    target: str = "http://127.0.0.1:8000",
    *,
    prompt: Annotated[str, Parameter(alias="-p")] = "",
    system: Annotated[str, Parameter(alias="-s")] = "",
    model: str = "",
    params: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    load: Path | None = None,
    api_key_env: str = "",
    timeout: str = "10 min",
) -> None:
    """Chat with a model of any OpenAI-compatible server.

    Example: steelyard chat http://127.0.0.1:8000 --prompt 'Once upon a time'

    A model's folder is served here for as long as the chat lasts.

    Inside, /help lists the commands, Ctrl-C stops an answer and Ctrl-D ends. With text on standard
    input, or --prompt, one question is asked and its answer printed as it comes.

    Args:
        target: Address of a server, a model's folder, or the id of a run that made one.
        prompt: Ask this and end; text on standard input follows it.
        system: Instructions to the model before the conversation.
        model: Name of the model; the server's first when left out.
        params: Fields of the request, such as temperature=0.7 max_tokens=200.
        load: A conversation kept with /save to go on with.
        api_key_env: Environment variable that holds the API key.
        timeout: Longest wait for one answer.
    """
    from steelyard.cli.terminal import Terminal
    from steelyard.serve.client.local import server_for

    with server_for(_address_or_folder(target)) as url:
        talk = _conversation(url, model, api_key_env, timeout)
        if load is not None:
            talk.load(load)
        for item in params:
            talk.set_parameter(item)
        if system:
            talk.set_system(system)
        piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
        question = "\n\n".join(filter(None, (prompt.strip(), piped)))
        if question or not sys.stdin.isatty():
            _ask_once(talk, question)
        else:
            Terminal(talk).run()


def _address_or_folder(target: str) -> str:
    """Turn a run's id into the folder of its model; an address or a folder stays."""
    from steelyard.cli.serve import model_folder
    from steelyard.errors import ConfigError

    # A bare word could be a host's name, but who types one means a model or a run.
    is_word = re.fullmatch(r"[\w-]+", target) is not None and target != "localhost"
    is_run = re.fullmatch(r"[0-9a-f]{6,12}", target) is not None and not Path(target).exists()
    if is_word and not is_run and not Path(target).exists():
        raise ConfigError(
            f"{target!r} is neither an address, a model folder nor a run",
            hint="write such as http://127.0.0.1:8000; `steelyard runs list` names the runs",
        )
    return str(model_folder(target)) if is_run else target


def _conversation(url: str, model: str, api_key_env: str, timeout: str) -> "Conversation":
    """Reach the server and begin."""
    from steelyard.errors import ConfigError
    from steelyard.serve.client.conversation import Conversation
    from steelyard.serve.client.load import list_models
    from steelyard.serve.client.wire.address import Endpoint, read_key
    from steelyard.units import parse

    endpoint = Endpoint.parse(url, api_key=read_key(api_key_env))
    models = list_models(endpoint)
    if model and models and model not in models:
        raise ConfigError(
            f"{endpoint.url} has no model {model!r}", hint=f"it has {', '.join(models[:8])}"
        )
    return Conversation(
        endpoint=endpoint,
        model=model or (models[0] if models else ""),
        timeout_s=parse(timeout, "s", where="--timeout"),
    )


def _ask_once(talk: "Conversation", question: str) -> None:
    """Print the answer to one question as it comes."""
    from steelyard.errors import ConfigError

    if not question:
        raise ConfigError(
            "there is no question",
            hint='echo "hello" | steelyard chat URL, or steelyard chat URL --prompt "hello"',
        )

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    reply = talk.ask(question, write)
    if not reply.text.endswith("\n"):
        sys.stdout.write("\n")
    if reply.is_stopped:
        raise KeyboardInterrupt
