"""The engine's process: connects to the gateway's socket, makes the engine and runs it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import convert
from steelyard.errors import SteelyardError
from steelyard.frames import Channel, MessageCodec
from steelyard.serve.front.engine.wire import Failed, Ready, Start, ToEngine
from steelyard.serve.options import EngineOptions

if TYPE_CHECKING:
    from steelyard.serve.engine import LLM
    from steelyard.serve.front.text import TextCodec
    from steelyard.serve.running.grammar import Grammars

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the engine until its gateway is gone.

    Args:
        arguments: path of the gateway's socket.

    Returns:
        Exit code: 0 after a drain, else what the failure says.
    """
    # A Ctrl-C in the terminal reaches both processes. The gateway decides when to end, after its
    # requests are answered; should it die, its closed socket ends this process in any case.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(arguments[0])
    channel = Channel(connection, MessageCodec(ToEngine))
    try:
        start = channel.receive()
        if start is None:
            return 1
        llm = _make(start)
        channel.send(_describe(llm))
        _run(llm, channel)
    except Exception as error:  # the gateway must learn the reason, whatever it is
        return _report(channel, error)
    return 0


def _make(start: Start) -> LLM:
    """Load the model and make its engine."""
    options = convert(start.options, EngineOptions, where="engine options")
    # Before torch is imported: its threads inherit the cores of the thread that starts them.
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    import torch

    from steelyard.serve.build import load_model, make_engine
    from steelyard.serve.front.text import TextCodec

    if options.threads or options.cores:
        torch.set_num_threads(options.threads or len(options.cores))
    folder = Path(start.model)
    model = load_model(folder, options)
    codec = TextCodec.load(folder)
    grammars = _grammars(codec, model.architecture.vocab_size)
    return make_engine(model, options, end_tokens=codec.end_tokens, grammars=grammars)


def _grammars(codec: TextCodec, vocab_size: int) -> Grammars | None:
    """Return what follows grammars, or None when this model's tokenizer cannot.

    Requests with a grammar are refused then.
    """
    from steelyard.serve.running.grammar import Grammars

    if codec.tokenizer is None:
        return None
    try:
        return Grammars(codec.tokenizer, vocab_size, codec.end_tokens)
    except SteelyardError:
        return None


def _describe(llm: LLM) -> Ready:
    """Tell the gateway what the engine can hold."""
    config = llm.config
    return Ready(
        vocab_size=llm.model.architecture.vocab_size,
        max_model_len=config.max_model_len,
        slots=config.num_blocks * config.block_size,
        max_num_seqs=config.max_num_seqs,
        embeds=True,
        kernel=llm.runner.kernel,
        weights=llm.runner.weights or "",
    )


def _run(llm: LLM, channel: Channel) -> None:
    """Step until the gateway is gone."""
    from steelyard.serve.front.engine.loop import EngineLoop
    from steelyard.serve.heap import freeze_heap
    from steelyard.serve.running.embed import embed

    freeze_heap()
    EngineLoop(llm, channel, lambda prompts: embed(llm.model, prompts)).run()
    llm.close()


def _report(channel: Channel, error: Exception) -> int:
    """Send the reason of a failure and return the exit code."""
    known = isinstance(error, SteelyardError)
    message = Failed(
        message=str(error) if known else f"{type(error).__name__}: {error}",
        hint=error.hint if known else "",
        exit_code=error.exit_code if known else 1,
    )
    try:
        channel.send(message)
    except OSError:
        print(f"steelyard engine: {message.message}", file=sys.stderr)
    return message.exit_code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking an interpreter with all of PyTorch apart takes seconds, in which a server that ends or
    # is started again holds its memory twice; nothing is left to do but to free it.
    os._exit(code)
