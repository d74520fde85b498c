"""The engine process.

Connects to the gateway's socket, makes the engine it is told to, and runs it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.errors import SteelyardError
from steelyard.serve.front.engine.wire import (
    Failed,
    FrameReader,
    Ready,
    Start,
    ToEngine,
    ToGateway,
    encode_frame,
)

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
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # the gateway decides when to end; a closed socket ends us in any case
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(arguments[0])
    try:
        llm = _make(_receive_start(connection))
        connection.sendall(encode_frame(_describe(llm)))
        _run(llm, connection)
    except Exception as error:  # the gateway must learn the reason, whatever it is
        return _report(connection, error)
    return 0


def _receive_start(connection: socket.socket) -> Start:
    """Wait for the first frame."""
    reader = FrameReader(ToEngine)
    while data := connection.recv(65536):
        for message in reader.feed(data):
            assert isinstance(message, Start)
            return message
    raise ConnectionError("the gateway is gone")


def _make(start: Start) -> LLM:
    """Load the model and make its engine."""
    if start.cores:
        os.sched_setaffinity(0, start.cores)
    import torch

    from steelyard.nn import checkpoint
    from steelyard.serve.engine import LLM, default_config
    from steelyard.serve.front.text import TextCodec
    from steelyard.serve.running.sampling import Sampler

    if start.threads or start.cores:
        torch.set_num_threads(start.threads or len(start.cores))
    folder = Path(start.model)
    model = checkpoint.load(folder)
    config = default_config(
        model,
        pool_bytes=start.pool_bytes,
        max_model_len=start.max_model_len,
        token_budget=start.token_budget,
    )
    config = replace(config, policy=start.policy)  # pyright: ignore[reportArgumentType]
    codec = TextCodec.load(folder)
    sampler = Sampler(_grammars(codec, model.architecture.vocab_size))
    return LLM(
        model, config, end_tokens=codec.end_tokens, asynchronous=start.asynchronous, sampler=sampler
    )


def _grammars(codec: TextCodec, vocab_size: int) -> Grammars | None:
    """Return what follows grammars, or None when this model's tokenizer cannot; requests with a grammar are refused then."""
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
    )


def _run(llm: LLM, connection: socket.socket) -> None:
    """Step until the gateway is gone."""
    from steelyard.serve.front.engine.loop import EngineLoop
    from steelyard.serve.running.embed import embed

    EngineLoop(llm, connection, lambda prompts: embed(llm.model, prompts)).run()
    llm.close()


def _report(connection: socket.socket, error: Exception) -> int:
    """Send the reason of a failure; give the exit code."""
    known = isinstance(error, SteelyardError)
    message: ToGateway = Failed(
        message=str(error) if known else f"{type(error).__name__}: {error}",
        hint=error.hint if known else "",
        exit_code=error.exit_code if known else 1,
    )
    try:
        connection.sendall(encode_frame(message))
    except OSError:
        print(f"steelyard engine: {message.message}", file=sys.stderr)
    return message.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
