"""What trained models lose in fewer bits: in the engine, in quantized folders, and in llama.cpp.

Decoders of bytes are trained here on abstracts, and scored on text that was neither trained nor
calibrated on. Folders are written by `steelyard serve quantize` and scored with activations in
float32. llama.cpp quantizes the same float32 weights, tables kept as they are on both sides; it is
scored twice, by itself (its products round activations to 8 bits) and with its weights alone in our
forward. The lower of both counts.
"""

import json
import math
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.serve._engine_loss import engine_loss
from benchmarks.serve._gguf_files import fields_of, stored_tensors
from benchmarks.serve._recall_model import Recipe, trained
from benchmarks.serve._recall_text import real_text
from torch import Tensor
from torch.nn import functional as F

from steelyard.errors import BackendError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer
from steelyard.serve.quantize.job import quantize
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.result import QuantizeResult
from steelyard.serve.running.weights import chosen_weights

PAPER: list[str] = []

_ENGINE_BARS = {"bf16": 0.001, "int8": 0.001, "int4": 0.015}
_KV_TYPES = {"bf16": torch.bfloat16, "int8": torch.int8}
_PROGRAM = Path(__file__).parent / "_gguf_program.py"
_PEER_TYPES = ("F32", "Q4_0", "Q8_0")


def run(quick: bool) -> list[Check]:
    """Score every model in every type."""
    steps = 20 if quick else 200
    phases = ((steps, 4 if quick else 16, 256, 64, 200),)
    shapes = [(2, 1)] if quick else [(4, 0), (2, 1)]
    found: list[Check] = []
    for layers, seed in shapes:
        longest = 256 if quick else 512
        recipe = Recipe(num_layers=layers, seed=seed, phases=phases, max_positions=longest)
        model = trained(recipe, every=steps)
        found += _Trained(model, f"{layers}x{recipe.hidden_size}", quick).checks()
    return found


@dataclass
class _Trained:
    """One trained model and text that it has not seen.

    Attributes:
        model: a decoder of bytes.
        name: its shape.
        quick: less of everything.
        rows: int64 [R, T], scored.
    """

    model: Transformer
    name: str
    quick: bool
    rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Cut the text: what was trained on, what is left to quantize with, what is scored."""
        length = self.model.architecture.max_positions
        text = real_text()[0]
        unseen = np.frombuffer(text[int(len(text) * 0.95) :], dtype=np.uint8).astype(np.int64)
        count = 6 if self.quick else 64
        tokens = torch.from_numpy(unseen[-count * length :].copy())
        self.rows = tokens.view(count, length)
        # A quarter of the text is kept aside by the quantization: it has to be unseen, too.
        kept = unseen[: -count * length][: (4 if self.quick else 24) * length * 2]
        seen = np.frombuffer(text[: 3 * len(kept)], dtype=np.uint8)
        self.text = " ".join(map(str, [*seen.tolist(), *kept.tolist()]))

    def checks(self) -> list[Check]:
        """Score the model."""
        base = self._loss(self.model)
        print(f"{self.name}: {self.rows.numel()} unseen bytes, fp32 loss {base:.4f} nats")
        found = self._engine()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            checkpoint.save(self.model, folder / "model")
            (folder / "text.txt").write_text(self.text)
            losses = self._folders(folder, base)
            theirs, own = self._peer(folder, base)
            found += [*self._bars(losses, theirs), *own]
            if not self.quick:
                found += self._mixed(folder, base)
        return found

    @torch.no_grad()
    def _loss(self, model: Transformer) -> float:
        """Return nats per byte of the scored rows."""
        losses = [
            F.cross_entropy(model(part)[:, :-1].flatten(0, 1), part[:, 1:].flatten()) * len(part)
            for part in self.rows.split(8)
        ]
        return float(torch.stack(losses).sum()) / len(self.rows)

    def _engine(self) -> list[Check]:
        """Score the engine, which rounds to nearest when it loads a plain folder."""
        rows = self.rows.numpy()[: 4 if self.quick else 32]
        exact = engine_loss(self.model, rows, "fp32")
        found = []
        for kind, bar in _ENGINE_BARS.items():
            lost = math.expm1(engine_loss(self.model, rows, kind) - exact)
            print(f"{self.name}: engine, {kind} at load: perplexity {lost:+.3%}")
            label = f"1 {self.name} perplexity lost in the engine with {kind} at load"
            found.append(Check(label, lost, bar, "lower"))
        for kind, dtype in _KV_TYPES.items():
            lost = math.expm1(engine_loss(self.model, rows, "fp32", dtype) - exact)
            print(f"{self.name}: engine, {kind} keys and values: perplexity {lost:+.3%}")
            label = f"1 {self.name} perplexity lost in the engine with {kind} keys and values"
            found.append(Check(label, lost, 0.001, "lower"))
        return found

    def _quantize(self, folder: Path, name: str, options: QuantizeOptions) -> QuantizeResult:
        """Write a folder of the model."""
        return quantize(folder / "model", folder / name, options)

    def _folders(self, folder: Path, base: float) -> dict[str, float]:
        """Return what quantized folders lose, by name."""
        text = folder / "text.txt"
        tokens = 4096 if self.quick else 16384
        method = "gptq" if self.quick else "auto"
        asked = {
            "int8": QuantizeOptions(weights="int8", calibrate=text),
            "int4 g128": QuantizeOptions(calibrate=text, calibration_tokens=tokens, method=method),
        }
        if not self.quick:
            asked["int4 g32"] = QuantizeOptions(
                calibrate=text, calibration_tokens=tokens, group=32, method="gptq"
            )
        lost = {}
        for name, options in asked.items():
            result = self._quantize(folder, name, options)
            lost[name] = math.expm1(self._loss(checkpoint.load(folder / name)) - base)
            bits = 8 * _matrix_bytes(folder / name) / _matrix_weights(self.model)
            own = result.rise("own")
            tried = ", ".join(
                f"{key} {math.expm1(loss):+.3%}" for key, loss in result.tried.items()
            )
            print(
                f"{self.name}: {name} ({result.method}), {bits:.3f} bits: perplexity "
                f"{lost[name]:+.3%}, on own outputs {own:+.3%}; to choose by: {tried}"
            )
        return lost

    def _peer(self, folder: Path, base: float) -> tuple[dict[str, float], list[Check]]:
        """Return what llama.cpp loses by type, and checks of its files; nothing without it."""
        asked = {
            "fields": fields_of(self.model.architecture),
            "splitters": [],
            "tokens": [""] * self.model.architecture.vocab_size,
            "merges": [],
            "types": _PEER_TYPES,
            "prompt": [0] * self.rows.shape[1],
            "rows": self.rows.tolist(),
            "texts": [],
            "threads": torch.get_num_threads(),
        }
        (folder / "model.json").write_text(json.dumps(asked))
        np.savez(folder / "weights.npz", allow_pickle=False, **stored_tensors(self.model))
        try:
            interpreter = peers.python("llama-cpp")
        except BackendError as error:
            print(f"llama.cpp is absent, nothing was compared: {error}. {error.hint}")
            return {}, []
        words = [str(interpreter), str(_PROGRAM), str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BackendError(f"llama.cpp failed: {done.stderr[-500:]}", hint="install it again")
        answers = dict(np.load(folder / "answers.npz"))
        exact = float(answers["F32"].mean())
        print(f"llama-cpp-python {answers['version']}: F32 loss {exact:.4f} nats")
        lost = {}
        for kind in _PEER_TYPES[1:]:
            itself = math.expm1(float(answers[kind].mean()) - exact)
            alone = math.expm1(self._loss(checkpoint.load(folder / f"{kind}.gguf")) - base)
            print(f"{self.name}: {kind} {itself:+.3%} by itself, its weights alone {alone:+.3%}")
            lost[kind] = min(itself, alone)
        return lost, [self._own_file(folder, kind, answers) for kind in _PEER_TYPES[1:]]

    def _own_file(self, folder: Path, kind: str, answers: dict[str, np.ndarray]) -> Check:
        """Score the engine over a file of llama.cpp's, beside llama.cpp."""
        rows = self.rows.numpy()[: 4 if self.quick else 32]
        model = checkpoint.load(folder / f"{kind}.gguf", keep_stored=True)
        weights = chosen_weights(model, "auto")
        found = engine_loss(model, rows, str(weights), torch.float32)
        less = math.expm1(found - float(answers[kind][: len(rows)].mean()))
        print(f"{self.name}: engine over the {kind} file, less llama.cpp: {less:+.4%}")
        label = f"5 {self.name} perplexity of the engine over {kind}, less llama.cpp's"
        return Check(label, less, 0.0, "lower")

    def _bars(self, ours: dict[str, float], theirs: dict[str, float]) -> list[Check]:
        """Compare with the bars and with llama.cpp at equal bytes or more."""
        start = f"{self.name} perplexity lost"
        found = [
            Check(f"2 {start} by int8", ours["int8"], 0.001, "lower"),
            Check(f"2 {start} by int4 g128, calibrated", ours["int4 g128"], 0.015, "lower"),
        ]
        pairs = {"int8": "Q8_0", "int4 g128": "Q4_0", "int4 g32": "Q4_0"}
        for name, value in ours.items():
            kind = pairs[name]
            # A missing peer passes nothing.
            less = value - theirs[kind] if theirs else math.nan
            found.append(Check(f"3 {start} by {name}, less that of {kind}", less, 0.0, "lower"))
        return found

    def _mixed(self, folder: Path, base: float) -> list[Check]:
        """Score a choice of types for a budget, and its forecast."""
        plain = QuantizeOptions(
            weights="mixed",
            calibrate=folder / "text.txt",
            calibration_tokens=8192,
            method="gptq",
            memory_bytes=int(1.25 * _folder_bytes(folder / "int4 g128")),
        )
        result = self._quantize(folder, "mixed", plain)
        lost = math.expm1(self._loss(checkpoint.load(folder / "mixed")) - base)
        (check,) = result.checks
        half = (check.forecast.high - check.forecast.low) / 2
        off = abs(check.forecast.value - check.measurement.value) / half
        kinds = [kind for layer in result.layers for kind in layer.types.values()]
        print(
            f"{self.name}: mixed within 1.25x of int4's bytes ({kinds.count('int8')} of "
            f"{len(kinds)} int8, {kinds.count('plain')} plain): perplexity {lost:+.3%}; loss "
            f"forecast {check.forecast.value:.4f}, measured {check.measurement.value:.4f}"
        )
        label = f"4 {self.name} mixed types: loss off its forecast, in half-widths of 80 %"
        return [Check(label, off, 1.0, "lower")]


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of the weight files of a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _matrix_weights(model: Transformer) -> int:
    """Return the number of weights of the layers' matrices."""
    return sum(item.numel() for item in model.layers.parameters() if item.ndim == 2)


def _matrix_bytes(folder: Path) -> int:
    """Return the bytes of codes, scales and zero points in a folder."""
    weights = checkpoint.Weights(folder, checkpoint.WEIGHTS, checkpoint.INDEX)
    ends = ("weight_packed", "weight_scale", "weight_zero_point")
    entries = [weights.entry(name) for name in weights.files if name.endswith(ends)]
    return sum(entry.stop - entry.start for entry in entries)
