"""Tokens per second of a decoder of 100 M parameters in bf16, beside transformers.Trainer."""

import os
import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.errors import BackendError

__all__ = ["beside_trainer"]

_PROGRAM = Path(__file__).with_name("_trainer_program.py")
_BAR = 1.1
_COLD = 4


def beside_trainer(rounds: int, *, compiled: bool = False) -> list[Check]:
    """Let both train a step in turn, the other one paused.

    Args:
        rounds: timed steps of each; four more come first.
        compiled: whether ours goes through torch.compile, which takes a minute first.

    Returns:
        Tokens per second over the peer's; nothing where the peer is not installed.
    """
    try:
        python = peers.python("transformers")
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return []
    hint = "python -m benchmarks peers install transformers"
    own = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ours = JsonProcess(
        [sys.executable, str(_PROGRAM)], {"engine": "steelyard", "compile": compiled}, own, hint
    )
    theirs = JsonProcess(
        [str(python), str(_PROGRAM)], {"engine": "transformers"}, peer_environment(), hint
    )
    try:
        seconds = _turns(ours, theirs, rounds)
    finally:
        ours.close()
        theirs.close()
    found = ratio(seconds[1], seconds[0])
    print(f"{theirs.name}: {min(seconds[1]):.2f} s a step, ours {min(seconds[0]):.2f} s")
    how = "compiled, " if compiled else ""
    name = f"tokens/s over transformers.Trainer, {how}100 M parameters in bf16"
    return [Check(name, found.median, _BAR, "higher")]


def _turns(ours: JsonProcess, theirs: JsonProcess, rounds: int) -> list[list[float]]:
    """Return seconds of each step of both, the first ones left out."""
    seconds: list[list[float]] = [[], []]
    # In its first three steps our trainer measures memory, with a slower allocator.
    for one, other in ((ours, theirs), (theirs, ours)):
        other.pause()
        one.ask({"steps": _COLD})
        other.resume()
    for _ in range(rounds):
        for kept, one, other in zip(seconds, (ours, theirs), (theirs, ours), strict=True):
            other.pause()
            found = one.ask({"steps": 1})["seconds"]
            other.resume()
            kept += found
    return seconds
