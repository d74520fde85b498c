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

    A model's folder or GGUF file is served here for as long as the chat lasts. When the
    conversation outgrows the model's context, its oldest turns are left out, which is said.

    Inside, /help lists the commands, Ctrl-C stops an answer and Ctrl-D ends. With text on standard
    input, or --prompt, one question is asked and its answer printed as it comes.

    Args:
        target: Address of a server, a model's or quickstart's folder, a GGUF file, or a run's name
            or id.
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

    with server_for(*_address_or_model(target)) as url:
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


def _address_or_model(target: str) -> tuple[str, str]:
    """Return an address and nothing, or the folder of a model and its name."""
    from steelyard.cli.models import find_model
    from steelyard.errors import SteelyardError

    if not _is_model(target):
        return target, ""
    try:
        found = find_model(target, or_address=True)
    except SteelyardError as error:
        # Who talks to a server far away may have left out what makes an address of its name.
        error.hint += "; an address is written such as http://127.0.0.1:8000"
        raise
    return str(found.folder), found.names[0]


def _is_model(target: str) -> bool:
    """Whether a target names a model on this machine rather than a server."""
    if Path(target).expanduser().exists() or target.startswith((".", "/", "~")):
        return True
    # A bare word could be a host's name, but who types one means a model or a run.
    return re.search(r"[.:]", target.partition("/")[0]) is None and target != "localhost"


def _conversation(url: str, model: str, api_key_env: str, timeout: str) -> "Conversation":
    """Reach the server and begin."""
    from steelyard.errors import ConfigError
    from steelyard.serve.client.conversation import Conversation
    from steelyard.serve.client.models import served_models
    from steelyard.serve.client.wire.address import Endpoint, read_key
    from steelyard.units import parse

    endpoint = Endpoint.parse(url, api_key=read_key(api_key_env))
    served = {item.id: item for item in served_models(endpoint)}
    models = list(served)
    if model and models and model not in models:
        raise ConfigError(
            f"{endpoint.url} has no model {model!r}", hint=f"it has {', '.join(models[:8])}"
        )
    name = model or (models[0] if models else "")
    return Conversation(
        endpoint=endpoint,
        model=name,
        context=(served[name].max_model_len or 0) if name in served else 0,
        timeout_s=parse(timeout, "s", where="--timeout"),
    )


def _ask_once(talk: "Conversation", question: str) -> None:
    """Print the answer to one question as it comes."""
    from steelyard.cli.terminal import left_out_notice
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
    if notice := left_out_notice(reply, talk.context):
        sys.stderr.write(f"{notice}\n")
    if reply.is_stopped:
        raise KeyboardInterrupt
