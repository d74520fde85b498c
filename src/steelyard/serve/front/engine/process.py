"""The engine's process: connects to the gateway's socket, makes the engine and runs it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.config import convert
from steelyard.errors import SteelyardError
from steelyard.frames import Channel, MessageCodec
from steelyard.nn.hashes import check_hashes
from steelyard.serve.front.engine.stages import StartStages
from steelyard.serve.front.engine.wire import Failed, Ready, Start, ToEngine
from steelyard.serve.options import EngineOptions
from steelyard.serve.running.native.library import compile_ahead
from steelyard.serve.running.pages import share_heap

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
    share_heap()
    # Nothing that a start makes is garbage, and looking for some takes a tenth of it.
    gc.disable()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(arguments[0])
    channel = Channel(connection, MessageCodec(ToEngine))
    try:
        llm, stages, note = _make(channel)
        channel.send(_describe(llm, stages.seconds, note))
        _run(llm, channel)
    except Exception as error:  # the gateway must learn the reason, whatever it is
        return _report(channel, error)
    return 0


def _make(channel: Channel) -> tuple[LLM, StartStages, str]:
    """Load the model and make its engine, while timing the parts; say how weights were chosen."""
    stages = StartStages()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as ahead:
        preparing = ahead.submit(_prepare, channel)
        # Begun before it is known what engine to make, and half of all work until it is made.
        import torch

        stages.end("import torch")
        # Nor does this: a process that is kept for later has imported all before it is told.
        import steelyard.serve.front.engine.loop
        import steelyard.serve.running.embed
        import steelyard.serve.running.grammar  # noqa: F401
        from steelyard.serve.build import load_model, make_engine
        from steelyard.serve.front.text import TextCodec

        stages.end("import steelyard")
        start, options, note, told_s = preparing.result()
    stages.end("hashes", not_before_s=told_s)
    stages.began("interpreter", start.spawned_s)
    _pin(options)
    if options.threads or options.cores:
        torch.set_num_threads(options.threads or len(options.cores))
    folder = Path(start.model)
    model = load_model(folder, options, is_checked=True)
    stages.end("weights")
    codec = TextCodec.load(folder)
    grammars = _grammars(codec, model.architecture.vocab_size)
    stages.end("tokenizer")
    llm = make_engine(model, options, end_tokens=codec.end_tokens, grammars=grammars)
    stages.end("engine")
    return llm, stages, note


def _prepare(channel: Channel) -> tuple[Start, EngineOptions, str, float]:
    """Learn what engine to make, and do of it what needs no PyTorch; runs beside its import.

    Args:
        channel: connection to the gateway.

    Returns:
        What to make, the engine's options, how its weights were chosen, and when it was told.
    """
    start = channel.receive()
    if start is None:
        os._exit(1)  # the gateway is gone, and this process may be in the midst of an import
    told_s = time.perf_counter()
    options = convert(start.options, EngineOptions, where="engine options")
    _pin(options)
    if options.native is not False and options.cache == "full":
        # Not waited for here: who loads a kernel waits for the one that compiles it.
        threading.Thread(target=compile_ahead, name="compile", daemon=True).start()
    check_hashes(Path(start.model))
    # Imported late, beside PyTorch: it needs numpy.
    from steelyard.serve.weight_choice import with_weights

    options, _, note = with_weights(options, Path(start.model))
    return start, options, note, told_s


def _pin(options: EngineOptions) -> None:
    """Keep all threads of this process on its cores; those they start inherit them."""
    for thread in Path("/proc/self/task").iterdir() if options.cores else ():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), options.cores)


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


def _describe(llm: LLM, stages: dict[str, float], weights_note: str) -> Ready:
    """Tell the gateway what the engine can hold."""
    config, guesser = llm.config, llm.scheduler.speculator
    return Ready(
        vocab_size=llm.model.architecture.vocab_size,
        max_model_len=config.max_model_len,
        slots=config.num_blocks * config.block_size,
        max_num_seqs=config.max_num_seqs,
        embeds=True,
        stages=stages,
        kernel=llm.runner.kernel,
        kernel_note=llm.runner.kernel_note,
        weights=llm.runner.weights or "",
        pool_bytes=llm.runner.kv.nbytes,
        kv_dtype=str(llm.runner.kv.dtype).removeprefix("torch."),
        weights_note=weights_note,
        guesses=guesser.drafter.kind if guesser else "off",
    )


def _run(llm: LLM, channel: Channel) -> None:
    """Step until the gateway is gone."""
    from steelyard.serve.front.engine.loop import EngineLoop
    from steelyard.serve.running.embed import embed

    # Not collected first, which takes as long as several steps: there is next to no garbage yet.
    gc.freeze()
    gc.enable()
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
