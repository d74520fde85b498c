"""GGUF files of every type that is read: our logits against llama.cpp's on the same file.

A random Llama is written as F32 and quantized by llama.cpp to each type. Both sides compute the
logits of one prompt. llama.cpp multiplies with activations that it rounds to float16, bfloat16 or 8
bits, depending on the type of the weights; ours are float32. Two differences are shown, both as a
share of what the type's rounding of the weights does to the logits: as they are, and with our
activations rounded alike, which explains a part (other orders of addition round to other codes).
A byte-level vocabulary cuts texts on both sides, with each pre-tokenizer that is read. A random
model of each other family is compared in F32.
"""

import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.serve._gguf_files import fields_of, stored_tensors
from torch import Tensor
from torch.nn import functional

from steelyard.catalog.architecture import Architecture
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import BackendError
from steelyard.nn import checkpoint
from steelyard.nn.gguf.splitting import SPLITTERS
from steelyard.nn.gguf.vocabulary import read_vocabulary
from steelyard.nn.transformer import Transformer, build

PAPER: list[str] = []

_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_PRES = [name for name in SPLITTERS if name]
_PROGRAM = Path(__file__).parent / "_gguf_program.py"
_TEXTS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs; it's 3.14!",
    "  Zwölf Boxkämpfer jagen Viktor\n\n\tquer über den großen Sylter Deich.",
    "def main(args):\n    return {'a': 1}  # comment\r\n",
    "it's I'LL HELLO WorldWide camelCase x\ty 1234567 a1b2 $5.00 ^~|+<=> ...!!! \n\n \r\n  end   ",
    "ÀÉÎ ǅ ʰ मानक हिन्दी ไทย 한국어 мир ½ ² ٣٤ \u00a0nbsp\u3000wide /a//b ¿Qué? “quoted” — dash…",
    "机器学习 模型 日本語のテキスト 😀🎉 été <|endoftext|> and on",
]
_SMALL = Architecture(
    name="random",
    hidden_size=256,
    num_layers=7,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=512,
    vocab_size=512,
    max_positions=512,
)
_GEMMA: dict[str, Any] = {"mlp": "geglu", "unit_offset_norm": True, "embedding_scale": 16.0}
_LATER = _GEMMA | {"sandwich_norm": True, "sliding_window": 16}
_NORMED: dict[str, Any] = {"qk_norm": True, "qk_norm_across_heads": True}
_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma": _GEMMA | {"head_dim": 128},
    "gemma2": _LATER | {"full_attention_every": 2, "attention_softcap": 5.0, "logit_softcap": 3.0},
    "gemma3": _LATER | {"full_attention_every": 6, "qk_norm": True, "rope_theta": 1e6},
    "phi3": {"tied_embeddings": False, "rotary_dim": 48},
    "granite": {
        "attention_scale": 0.2,
        "embedding_scale": 6.0,
        "residual_scale": 0.5,
        "logit_divisor": 2.0,
    },
    "smollm3": {"no_rope_every": 4},
    "olmo2": _NORMED | {"post_norm": True, "tied_embeddings": False},
}
"""What each family has beyond a small Llama; what its files do not say is llama.cpp's own value."""
_GELU = functional.gelu
_HALF = 2.0**-11
"""Largest rounding of float16, relative."""
_EXACT = 1e-4
"""Largest difference of F32 logits, relative: both sides add in an order of their own."""


def run(quick: bool) -> list[Check]:
    """Compare types, vocabulary, and the seconds of loading."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(_TEXTS * 20 + [Path(__file__).read_text()], 512)
    model = _model(tokenizer.get_vocab_size(), quick)
    length = 48 if quick else 128
    prompt = torch.randint(0, model.architecture.vocab_size, (length,)).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _ask(folder, model, json.loads(tokenizer.to_str()), prompt)
        try:
            interpreter = peers.python("llama-cpp")
        except BackendError as error:
            print(f"llama.cpp is absent, nothing was compared: {error}. {error.hint}")
            return [Check("types compared with llama.cpp", 0, len(_TYPES), "higher")]
        answers = _answers(interpreter, folder)
        print(f"llama-cpp-python {answers['version']}, {_size(model)} weights, {length} tokens")
        compared = _compared(folder, prompt, answers)
        families = [_family_check(interpreter, folder, family, prompt) for family in _FAMILIES]
        return [*compared, _vocabulary(folder, answers), *families]


def _answers(interpreter: Path, folder: Path) -> dict[str, np.ndarray]:
    """Let llama.cpp compute what a folder asks for."""
    done = subprocess.run(
        [str(interpreter), str(_PROGRAM), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BackendError(f"llama.cpp failed: {done.stderr[-500:]}", hint="install it again")
    return dict(np.load(folder / "answers.npz"))


@torch.no_grad()
def _family_check(interpreter: Path, folder: Path, family: str, prompt: list[int]) -> Check:
    """Compare the logits of a random model of a family, in F32."""
    folder = folder / family
    folder.mkdir()
    model = _filled(build(replace(_SMALL, **_FAMILIES[family]), seed=1).eval())
    asked = {
        "family": family,
        "fields": fields_of(model.architecture),
        "splitters": [],
        "tokens": [""] * _SMALL.vocab_size,
        "types": ["F32"],
        "prompt": prompt,
        "threads": torch.get_num_threads(),
    }
    (folder / "model.json").write_text(json.dumps(asked))
    np.savez(folder / "weights.npz", allow_pickle=False, **stored_tensors(model, family))
    wanted = torch.from_numpy(_answers(interpreter, folder)["F32"])
    ours, tokens = checkpoint.load(folder / "F32.gguf"), torch.tensor([prompt])
    differs = _relative(ours(tokens)[0], wanted)
    with mock.patch.object(functional, "gelu", _table_gelu):
        same = _relative(ours(tokens)[0], wanted)
    print(f"{family:8s} differs by {differs:.1e}, with GELU from a table by {same:.1e}")
    # A number that the two sides round to different places of the table differs by more in the
    # next layer, whose numbers then do so more often.
    bar = _HALF if ours.architecture.mlp == "geglu" else _EXACT
    return Check(f"4 {family} F32 logits differ by, relative", same, bar, "lower")


def _table_gelu(values: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU as llama.cpp looks it up: argument and result in float16.

    Source: `ggml_vec_gelu_f32` of ggml (src/ggml-cpu/vec.h).
    """
    found = _GELU(values.half().float(), approximate=approximate).half().float()
    return torch.where(values <= -10, 0.0, torch.where(values >= 10, values, found))


def _model(vocab_size: int, quick: bool) -> Transformer:
    """Build the model, with gains and weights wide enough that layers matter."""
    width, layers = (256, 3) if quick else (512, 8)
    arch = Architecture(
        name="random",
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 64,
        num_kv_heads=width // 128,
        head_dim=64,
        intermediate_size=width * 3,
        vocab_size=vocab_size,
        max_positions=512,
        tied_embeddings=False,
    )
    return _filled(build(arch, seed=0).eval())


@torch.no_grad()
def _filled(model: Transformer) -> Transformer:
    """Draw gains and biases."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _ask(folder: Path, model: Transformer, tokenizer: dict[str, Any], prompt: list[int]) -> None:
    """Leave what the program needs, with queries and keys in llama.cpp's order of rows."""
    arch = model.architecture
    vocabulary = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    # Steelyard's end of text is token 0; here it stands last, so that the program can name it.
    tokens = [vocabulary[index] for index in range(len(vocabulary))]
    asked = {
        "fields": fields_of(arch),
        "splitters": _PRES,
        "tokens": tokens[1:] + tokens[:1],
        "merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "types": _TYPES,
        "prompt": prompt,
        "texts": _TEXTS,
        "threads": torch.get_num_threads(),
    }
    (folder / "model.json").write_text(json.dumps(asked))
    np.savez(folder / "weights.npz", allow_pickle=False, **stored_tensors(model))


@torch.no_grad()
def _compared(folder: Path, prompt: list[int], answers: dict[str, np.ndarray]) -> list[Check]:
    """Compare the logits of each type."""
    tokens = torch.tensor([prompt])
    exact = torch.from_numpy(answers["F32"])
    checks = []
    print(
        f"{'type':6s} {'load s':>7s} {'of weights':>11s} {'differs by':>11s} {'share':>6s} "
        f"{'same activations':>17s}"
    )
    for kind in _TYPES:
        start = time.perf_counter()
        model = checkpoint.load(folder / f"{kind}.gguf")
        seconds = time.perf_counter() - start
        ours, theirs = model(tokens)[0], torch.from_numpy(answers[kind])
        differs = _relative(ours, theirs)
        if kind == "F32":
            print(f"{kind:6s} {seconds:7.2f} {0:11.1e} {differs:11.1e}")
            checks.append(Check("1 F32 logits differ by, relative", differs, _EXACT, "lower"))
            continue
        rounding = _relative(model(tokens)[0], exact)
        _round_activations(model, kind)
        same = _relative(model(tokens)[0], theirs)
        print(
            f"{kind:6s} {seconds:7.2f} {rounding:11.1e} {differs:11.1e} {differs / rounding:6.2f} "
            f"{same / rounding:17.3f}"
        )
        checks.append(
            Check(
                f"2 {kind} logits differ, share of the type's rounding",
                differs / rounding,
                1.0,
                "lower",
            )
        )
    return checks


def _relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the distance of logits, relative to their size."""
    return float((ours - theirs).norm() / theirs.norm())


def _round_activations(model: Transformer, kind: str) -> None:
    """Round what enters each product as llama.cpp does for weights of this type."""

    def rounded(_module: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_rounded(inputs[0], kind), *inputs[1:])

    def after_norm(_module: object, _inputs: object, hidden: Tensor) -> Tensor:
        return _rounded(hidden, kind)

    for module in model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
    # The head is a product without a module of its own; the last norm is all it reads.
    model.norm.register_forward_hook(after_norm)


def _rounded(values: Tensor, kind: str) -> Tensor:
    """Round rows to float16 or bfloat16, or to 8 bits by blocks of 32, of 256 for K types.

    Source: `quantize_row_q8_0` and `quantize_row_q8_K` of ggml (src/ggml-quants.c).
    """
    if kind in ("F16", "BF16"):
        return values.to(torch.float16 if kind == "F16" else torch.bfloat16).float()
    grouped = values.unflatten(-1, (-1, 256 if kind.endswith("_K") else 32))
    scales = grouped.abs().amax(-1, keepdim=True) / 127
    codes = (grouped / scales.clamp_min(1e-30)).round()
    kept = scales if kind.endswith("_K") else scales.half().float()
    return (codes * kept).flatten(-2)


def _vocabulary(folder: Path, answers: dict[str, np.ndarray]) -> Check:
    """Compare the token ids of texts."""
    same = []
    for pre in _PRES:
        tokenizer = read_vocabulary(folder / f"vocabulary-{pre}.gguf").tokenizer
        assert tokenizer is not None
        for index, text in enumerate(_TEXTS):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            same.append(ids == answers[f"{pre} {index}"].tolist())
    print(f"{len(_PRES)} pre-tokenizers: texts cut alike {sum(same)} of {len(same)}")
    return Check("3 texts cut as llama.cpp does", float(np.mean(same)), 1.0, "higher")


def _size(model: Transformer) -> str:
    """Return the number of weights."""
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M"
