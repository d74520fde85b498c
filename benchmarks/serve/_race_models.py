"""The same random model in the format of each engine."""

import json
import subprocess
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.serve._gguf_files import fields_of, stored_tensors
from benchmarks.serve._json_process import peer_environment
from benchmarks.serve._shapes import llama_shape

from steelyard.errors import BackendError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer, build

__all__ = ["RaceModel"]

_HERE = Path(__file__).parent
_GGUF = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}


class RaceModel:
    """A model in a folder; formats of others are written when they are first asked for.

    Attributes:
        name: of the shape.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Build and save the model.

        Args:
            name: of the shape.
            folder: empty folder for all formats.
        """
        self.name, self._folder = name, folder
        self._model: Transformer = build(llama_shape(name), seed=0).eval()
        checkpoint.save(self._model, folder / "folder")

    def path(self, engine: str, weights: str) -> Path:
        """Return the folder or file that an engine loads.

        Args:
            engine: "steelyard", "vllm", "openvino" or "llama".
            weights: type of the weights.

        Returns:
            Its path.

        Raises:
            BackendError: the peer is not installed, or could not write it.
        """
        if engine == "openvino":
            return self._exported("fp32" if weights == "bf16" else weights)
        return self._gguf(weights) if engine == "llama" else self._folder / "folder"

    def _exported(self, weights: str) -> Path:
        """Let OpenVINO's own tool convert the folder; bf16 is a matter of its run, not of files."""
        target = self._folder / f"openvino-{weights}"
        if not target.exists():
            asked = [str(self._folder / "folder"), str(target), weights]
            _run("openvino", "_race_export.py", asked)
        return target

    def _gguf(self, weights: str) -> Path:
        """Let llama.cpp write a type of file."""
        target = self._folder / f"{_GGUF[weights]}.gguf"
        if not target.exists():
            arch = self._model.architecture
            asked = {"fields": fields_of(arch), "tokens": [""] * arch.vocab_size}
            (self._folder / "model.json").write_text(json.dumps(asked))
            np.savez(
                self._folder / "weights.npz", allow_pickle=False, **stored_tensors(self._model)
            )
            _run("llama-cpp", "_race_quantize.py", [str(self._folder), _GGUF[weights]])
        return target


def _run(peer: str, program: str, arguments: list[str]) -> None:
    """Run one of the programs beside this file in a peer's environment."""
    done = subprocess.run(
        [str(peers.python(peer)), str(_HERE / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=peer_environment(),
    )
    if done.returncode:
        raise BackendError(
            f"{peer} could not convert the model: {done.stderr[-800:]}",
            hint=f"python -m benchmarks peers install {peer}",
        )
