"""What an engine holds of a model beside what is stored, and what keeping packed weights saves.

Models of random weights are served, each by an engine in a process of its own: folders in float32,
float16 and bfloat16, folders of int8 and int4 codes, and GGUF files of blocks; in a full run also
an int4 model of the shape of a 7B Llama, written layer by layer to a temporary folder.

Memory is what the process holds after an answer to a short prompt, less that of a process that has
loaded all modules, less the pool, which is filled. Code that runs the first time, its scratch and
tables of the tokenizer-free engine are in there too: an engine of a tiny model tells how much, and
the checks take that off; the table shows both. Steps of long prompts need buffers for 512 rows,
shown as well: they grow with the model's widths, not with its weights.

Packed weights are kept in a file that the next engine maps. Decoding over the map is timed in turn
with decoding over weights that were packed into huge pages, in one process.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Check
from benchmarks.serve._coded_folder import write_blocks, write_coded

from steelyard.catalog.architecture import Architecture

PAPER: list[str] = []

_STORED_BAR = 1.05
_MAPPED_BAR = 1.03
_AGAIN_BAR = 0.7
_PEAK_BAR_BYTES = 6e9
_POOL_TOKENS = 640
_MODEL = Architecture(
    name="memory",
    hidden_size=1024,
    num_layers=16,
    num_heads=16,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=2816,
    vocab_size=16384,
    max_positions=2048,
)
_TINY = dataclasses.replace(
    _MODEL, hidden_size=128, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=256,
    vocab_size=256,
)  # fmt: skip
_LLAMA_7B = dataclasses.replace(
    _MODEL,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    vocab_size=32000,
    tied_embeddings=False,
)
_KINDS = ("fp32", "fp16", "bf16", "int8", "int4", "Q4_0", "Q4_K", "Q8_0")


@dataclasses.dataclass(frozen=True)
class _Measured:
    """One engine: what is stored, and what its process said."""

    stored: float
    pool: float
    before: float
    held: float
    peak: float
    after_prompt: float
    made_s: float
    again_s: float
    mapped_over_packed: float | None
    is_mapped: bool
    kernel: str
    weights: str

    @property
    def beyond(self) -> float:
        """Bytes held beyond those of a process without a model and the pool."""
        return self.held - self.before - self.pool


def run(quick: bool) -> list[Check]:
    """Measure one engine per type.

    Args:
        quick: 6 layers instead of 16, four types, and no 7B shape.

    Returns:
        Memory over what is stored per type, the peak of the 7B shape, and decoding over a map.
    """
    arch = dataclasses.replace(_MODEL, num_layers=6) if quick else _MODEL
    kinds = ("fp16", "int4", "Q4_0", "Q4_K") if quick else _KINDS
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tiny = {kind: _measure(home, _TINY, kind) for kind in ("bf16", "Q4_0")}
        found = {kind: _measure(home, arch, kind) for kind in kinds}
        large = None if quick else _measure(home, _LLAMA_7B, "int4", rounds=0)
    _print(found | ({"7B int4": large} if large else {}), tiny)
    checks = [
        Check(f"1 held over stored, {kind}",
              (item.beyond - tiny["Q4_0" if kind.startswith("Q") else "bf16"].beyond) / item.stored,
              _STORED_BAR, "lower")
        for kind, item in found.items()
    ]  # fmt: skip
    if large:
        # Of a model of this size nothing has to be taken off.
        checks += [
            Check("1 held over stored, 7B int4", large.beyond / large.stored, _STORED_BAR, "lower"),
            Check(
                "2 peak of a 7B int4 shape over 6 GB", large.peak / _PEAK_BAR_BYTES, 1.0, "lower"
            ),
        ]
    every = [*found.values(), *([large] if large else [])]
    again = statistics.median(item.again_s / item.made_s for item in every)
    checks.append(Check("3 seconds from kept weights, over packing", again, _AGAIN_BAR, "lower"))
    # Where files are mapped in small pages they are read into huge ones: nothing to compare.
    ratios = [item.mapped_over_packed for item in found.values() if item.is_mapped]
    if ratios and not quick:
        slowest = max(ratio for ratio in ratios if ratio is not None)
        checks.append(Check("3 decoding over maps, over packed", slowest, _MAPPED_BAR, "lower"))
    return checks


def _measure(home: Path, arch: Architecture, kind: str, rounds: int = 7) -> _Measured:
    """Write a model, serve it in a process of its own, and remove it."""
    with tempfile.TemporaryDirectory(dir=home) as folder, tempfile.TemporaryDirectory() as cache:
        model = Path(folder) / ("model.gguf" if kind.startswith("Q") else "model")
        stored = _write(model, arch, kind)
        # Four bytes a number: more than any of these types keeps.
        pool = _POOL_TOKENS * arch.num_layers * arch.num_kv_heads * arch.head_dim * 8
        program = [sys.executable, "-m", "benchmarks.serve._engine_memory"]
        done = subprocess.run(
            [*program, str(model), cache, str(pool), str(rounds)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    return _Measured(stored=stored, **json.loads(done.stdout.splitlines()[-1]))


def _write(model: Path, arch: Architecture, kind: str) -> float:
    """Write a model, and return the bytes of its weights."""
    if kind.startswith("Q"):
        return write_blocks(model, arch, kind)
    if kind in ("int4", "int8"):
        return write_coded(model, arch, 4 if kind == "int4" else 8)
    import torch

    from steelyard.nn import checkpoint
    from steelyard.nn.transformer import build

    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    checkpoint.save(build(arch, dtype=dtypes[kind]), model)
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))


def _print(found: dict[str, _Measured], tiny: dict[str, _Measured]) -> None:
    """Print a row per engine, sizes in MB."""
    for kind, item in tiny.items():
        print(f"an engine of a tiny {kind} model holds {item.beyond / 1e6:.0f} MB beyond its pool")
    heads = "stored", "held", "peak", "prompt", "held/st.", "start s", "mapped s", "TPOT"
    print(f"{'MB':<8}" + "".join(f"{head:>10}" for head in heads) + "  kernel")
    for kind, item in found.items():
        prompt = item.after_prompt - item.before - item.pool
        sizes = item.stored, item.beyond, item.peak, prompt
        numbers = f"{item.beyond / item.stored:10.3f}{item.made_s:10.2f}{item.again_s:10.2f}"
        print(
            f"{kind:<8}" + "".join(f"{size / 1e6:10.0f}" for size in sizes) + numbers
            + f"{item.mapped_over_packed or float('nan'):10.3f}  {item.kernel}, {item.weights}"
        )  # fmt: skip
