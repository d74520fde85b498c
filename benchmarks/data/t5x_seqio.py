"""The loader against replaying iterators, shuffle buffers and torch's DataLoader.

Resume after a kill, worlds of several sizes, shuffle quality, rates of mixtures, tokens per second
of tokenizing and packing, room left in rows, and refusal of damaged caches. seqio and grain, the
peers of the paper's method, are named when they are not installed; nothing here stands in for them.
"""

import hashlib
import importlib.util
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.common import Check, alternate, ratio
from benchmarks.data import _loaders

from steelyard.data import text
from steelyard.data.clean import clean, decode, split
from steelyard.data.convert import LanguageModel
from steelyard.data.index import Permutation
from steelyard.data.loader import Loader
from steelyard.data.schedule import Interleave
from steelyard.data.shards import TokenShards
from steelyard.data.sources import default_sources, list_files
from steelyard.data.tasks import (
    ByteVocabulary,
    CachedTask,
    Feature,
    Records,
    Task,
    TaskMixture,
    TextFiles,
    TokenizerVocabulary,
    by_examples,
    write_cache,
)
from steelyard.data.tasks.steps import rename, split_tokens
from steelyard.errors import DataError

PAPER = ["25-t5x-seqio"]
_LENGTH, _BATCH = 1024, 8
_FAR = 1_000_000
_EXAMPLES = 1_000_000


def run(quick: bool) -> list[Check]:
    """Make a corpus of this machine's texts and run all checks on it."""
    for name in ("seqio", "grain"):
        state = "installed, not compared" if importlib.util.find_spec(name) else "not installed"
        print(f"peer {name}: {state}")
    print("check 6 of the paper's method, partition presets, is in the benchmark partition_presets")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepared = _corpus(work, 3_000_000 if quick else 12_000_000)
        task = _task(work)
        write_cache(task, work / "cache", workers=2)
        cached = CachedTask(task, work / "cache")
        return [
            *_resume(work, cached, quick),
            *_worlds(cached),
            *_shuffle(quick),
            *_mixtures(),
            *_throughput(work, quick),
            *_efficiency(cached),
            *_waiting(prepared, cached, quick),
            *_refusals(work, task),
        ]


def _corpus(work: Path, size: int) -> Path:
    """Write documents of this machine as files; return a folder of their token shards."""
    (work / "texts").mkdir()
    number = 0
    for file in list_files(default_sources(), size):
        for piece in split(clean(decode(file.path.read_bytes()) or "")):
            (work / "texts" / f"{number:06d}.txt").write_text(piece)
            number += 1
    text.prepare([work / "texts"], work / "tokens", vocab_size=4096)
    return work / "tokens"


def _task(work: Path, tokens: str = "tokens") -> Task:
    """Return the task of pieces of documents that fill a row at most."""
    vocabulary = TokenizerVocabulary(folder=work / tokens)
    return Task(
        name="texts",
        source=TextFiles(work / "texts"),
        features={"targets": Feature(vocabulary=vocabulary)},
        prepare=(
            partial(rename, fields={"targets": "text"}),
            partial(split_tokens, vocabulary=vocabulary, length=_LENGTH - 1),
        ),
    )


def _loader(cached: CachedTask) -> Loader:
    """Return the loader that most checks use."""
    return Loader(cached, LanguageModel(length=_LENGTH), _BATCH, pack=True)


def _digest(batch: dict[str, np.ndarray]) -> str:
    """Hash a batch."""
    return hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()


_CHILD = """
import sys
from pathlib import Path
from benchmarks.data import t5x_seqio as here
work, start = Path(sys.argv[1]), int(sys.argv[2])
loader = here._loader(here.CachedTask(here._task(work), work / "cache"))
for step, batch in enumerate(loader.batches(start), start):
    print(step, here._digest(batch), flush=True)
"""


def _resume(work: Path, cached: CachedTask, quick: bool) -> list[Check]:
    """Kill a reader, start another, and compare its batches; time the start at a far step."""
    count = 200 if quick else 1000
    killed = _read(work, 0, 37)
    resumed = _read(work, len(killed), count)
    loader = _loader(cached)
    expected = {step: _digest(loader.batch(step)) for step in range(len(killed) + count)}
    found = killed | resumed
    different = sum(found[step] != digest for step, digest in expected.items())
    sizes = cached.sizes("targets") + 1
    steps = (1000, 10_000) if quick else (10_000, 100_000)

    def start(step: int) -> None:
        _loader(CachedTask(cached.task, cached.folder)).batch(step)

    many = _loaders.ManyExamples(_EXAMPLES)

    def start_of_many() -> None:
        Loader(many, LanguageModel(length=_LENGTH), _BATCH, pack=True).batch(_FAR)

    again = partial(_loaders.replay, sizes, _BATCH, 1000, _LENGTH)
    seconds = alternate(
        {
            "ours at 0": lambda: start(0),
            "ours far": lambda: start(_FAR),
            "ours, many": start_of_many,
            "replay near": lambda: again(steps[0]),
            "replay far": lambda: again(steps[1]),
        },
        rounds=2 if quick else 3,
    )
    least = {name: min(times) for name, times in seconds.items()}
    for name, value in least.items():
        print(f"  resume, {name:<12} {value:8.3f} s")
    return [
        Check(f"1 of {count} batches after kill -9, different", different, 0, "lower"),
        Check("1 seconds to resume at step 10^6, cache verified", least["ours far"], 1.0, "lower"),
        Check("1 seconds to resume there in 10^6 examples", least["ours, many"], 1.0, "lower"),
        Check(
            "1 resume at step 10^6 over step 0",
            least["ours far"] / least["ours at 0"],
            1.5,
            "lower",
        ),
        Check(
            f"1 replaying loader, resume at step {steps[1]:,} over {steps[0]:,}",
            least["replay far"] / least["replay near"],
            5.0,
            "higher",
        ),
    ]


def _read(work: Path, start: int, count: int) -> dict[int, str]:
    """Read batches in another process, which is killed in the middle of the next ones."""
    words = [sys.executable, "-c", _CHILD, str(work), str(start)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [line.split() for line in itertools.islice(child.stdout, count)]
    child.kill()
    child.communicate()
    return {int(step): digest for step, digest in lines}


def _worlds(cached: CachedTask) -> list[Check]:
    """Compare what 1, 2, 4, 8 readers get together, and a number that changes on the way."""
    loader = _loader(cached)
    steps = range(40)
    whole = [_digest(loader.batch(step)) for step in steps]

    def joined(world: int, step: int) -> str:
        shares = [_loader_of(world, rank, cached).batch(step, rank, world) for rank in range(world)]
        return _digest({key: np.concatenate([part[key] for part in shares]) for key in shares[0]})

    checks = []
    for world in (1, 2, 4, 8):
        different = sum(joined(world, step) != whole[step] for step in steps)
        checks.append(
            Check(f"2 of 40 batches of {world} readers, different", different, 0, "lower")
        )
    order = (8, 2, 4, 1)
    different = sum(joined(order[step // 10], step) != whole[step] for step in steps)
    return [
        *checks,
        Check("2 of 40 batches while readers change, different", different, 0, "lower"),
    ]


_READERS: dict[tuple[int, int], Loader] = {}


def _loader_of(world: int, rank: int, cached: CachedTask) -> Loader:
    """Return a reader's own loader, which knows nothing of the others."""
    if (world, rank) not in _READERS:
        _READERS[world, rank] = _loader(cached)
    return _READERS[world, rank]


def _shuffle(quick: bool) -> list[Check]:
    """Correlate the source's order with the stream's, over a million examples."""
    places = np.arange(_EXAMPLES)
    worst, missed = 0.0, 0
    for seed, epoch in itertools.product(range(2 if quick else 10), (0, 1)):
        examples = Permutation(_EXAMPLES, seed, epoch)(places)
        worst = max(worst, abs(float(np.corrcoef(places, examples)[0, 1])))
        missed += int((np.bincount(examples, minlength=_EXAMPLES) != 1).sum())
    buffered = _loaders.buffer_shuffle(_EXAMPLES, 1000, 0)
    return [
        Check("3 rank correlation of source and stream, worst", worst, 0.01, "lower"),
        Check(
            "3 rank correlation after a buffer of 1,000",
            float(np.corrcoef(places, buffered)[0, 1]),
            0.99,
            "higher",
        ),
        Check("3 examples not exactly once in an epoch", missed, 0, "lower"),
    ]


def _mixtures() -> list[Check]:
    """Count draws of mixtures; compare rate rules with their definition on known sizes."""
    worst, rng = 0.0, np.random.default_rng(0)
    for parts in (2, 3, 8, 30):
        rates = rng.lognormal(0, 1.5, parts)
        drawn, _ = Interleave(rates.tolist())(np.arange(100_000))
        shares = np.bincount(drawn, minlength=parts) / 100_000
        worst = max(worst, float(np.abs(shares - rates / rates.sum()).max()))
    return [
        Check("4 share of a task after 10^5 draws, error", worst, 0.001, "lower"),
        Check("4 documented cases of rates, largest relative error", _rate_error(), 1e-9, "lower"),
    ]


def _rate_error() -> float:
    """Compare rates of T5's rules: examples, clipped at a maximum, tempered, nested."""
    sizes = {"a": 100, "b": 10_000, "c": 1_000_000}
    cases = {
        (): {"a": 100, "b": 10_000, "c": 1_000_000},
        (("maximum", 65_536.0),): {"a": 100, "b": 10_000, "c": 65_536},
        (("temperature", 2.0),): {"a": 10, "b": 100, "c": 1000},
        (("maximum", 10_000.0), ("temperature", 2.0)): {"a": 10, "b": 100, "c": 100},
        (("scale", 4.0), ("maximum", 40_000.0)): {"a": 400, "b": 40_000, "c": 40_000},
    }
    errors = []
    for options, expected in cases.items():
        rate = by_examples(**dict(options))
        errors += [abs(rate(size) / expected[name] - 1) for name, size in sizes.items()]
    vocabulary = Feature(vocabulary=ByteVocabulary())
    tasks = [
        Task(name=name, source=Records([{"targets": "x"}] * size), features={"targets": vocabulary})
        for name, size in (("a", 100), ("b", 300), ("c", 50))
    ]
    inner = TaskMixture("inner", ((tasks[0], by_examples()), (tasks[1], by_examples())))
    outer = TaskMixture("outer", ((inner, 8.0), (tasks[0], 1.0), (tasks[2], 5.0)))
    expected = {"a": 3.0, "b": 6.0, "c": 5.0}
    return max(*errors, *(abs(outer.rates()[name] / rate - 1) for name, rate in expected.items()))


def _throughput(work: Path, quick: bool) -> list[Check]:
    """Tokenize and pack the same files: ours through a cache, theirs through torch's DataLoader."""
    files = sorted((work / "texts").iterdir())
    numbers = itertools.count()
    tokens: dict[str, int] = {}

    def ours() -> None:
        # A folder of its own each time, so that no worker still has a table of the words.
        name = f"tokens-{next(numbers)}"
        (work / name).mkdir()
        shutil.copy(work / "tokens" / "tokenizer.json", work / name)
        task = _task(work, name)
        write_cache(task, work / f"cache-{name}", workers=2)
        loader = _loader(CachedTask(task, work / f"cache-{name}"))
        steps = -(-len(loader.packed["texts"]) // _BATCH)
        tokens["ours"] = sum(
            int((loader.batch(step)["segments"] > 0).sum()) for step in range(steps)
        )

    dataset = _loaders.GreedyDataset(files, work / "tokens" / "tokenizer.json", _LENGTH, _BATCH)

    def theirs(workers: int) -> None:
        tokens["theirs"] = _loaders.torch_rows(dataset, workers)

    seconds = alternate(
        {"ours": ours, "2 workers": lambda: theirs(2), "no workers": lambda: theirs(0)},
        rounds=2 if quick else 3,
    )
    checks = []
    for name in ("2 workers", "no workers"):
        found = ratio(seconds[name], seconds["ours"])
        print(
            f"  tokenize + pack, ours over DataLoader with {name}: {found.median:.2f} "
            f"({found.low:.2f} to {found.high:.2f})"
        )
        checks.append(
            Check(f"5 tokens/s, ours over DataLoader, {name}", found.median, 1.0, "higher")
        )
    rate = tokens["ours"] / min(seconds["ours"])
    print(f"  {tokens['ours']:,} tokens of ours, {tokens['theirs']:,} of theirs, {rate:,.0f} / s")
    return checks


def _efficiency(cached: CachedTask) -> list[Check]:
    """Compare room left in rows with that of greedy packing in stream order."""
    loader = _loader(cached)
    order = Permutation(len(cached), 0)(np.arange(len(cached)))
    greedy = _loaders.greedy_efficiency((cached.sizes("targets") + 1)[order], _LENGTH)
    rows = loader.packed["texts"]
    print(f"  {len(cached):,} examples in {len(rows):,} rows, {rows.cut_tokens} tokens cut off")
    return [
        Check("5 packing efficiency", rows.efficiency, 0.98, "higher"),
        Check("5 packing, ours over greedy", rows.efficiency / greedy, 1.0, "higher"),
    ]


def _waiting(prepared: Path, cached: CachedTask, quick: bool) -> list[Check]:
    """Time batches beside the steps of a small model that is trained on them."""
    from steelyard.catalog.architecture import Architecture
    from steelyard.train import TrainConfig
    from steelyard.train.trainer import train

    shape = Architecture(
        name="small",
        hidden_size=192,
        num_layers=4,
        num_heads=6,
        num_kv_heads=6,
        head_dim=32,
        intermediate_size=512,
        vocab_size=4096,
    )
    config = TrainConfig(
        architecture=shape,
        steps=8 if quick else 40,
        batch_size=_BATCH,
        sequence_length=256,
        learning_rate=1e-3,
        eval_tokens=256,
        threads=2,
    )
    source = _TimedShards(prepared)
    result = train(config, source, prepared.parent / "run")
    loader = Loader(cached, LanguageModel(length=256), _BATCH, pack=True)
    packed = []
    for step in range(60):
        start = time.perf_counter()
        loader.batch(step)
        packed.append(time.perf_counter() - start)
    return [
        Check(
            f"5 data wait over step, {name}",
            float(np.median(seconds)) / result.step_time_s,
            0.01,
            "lower",
        )
        for name, seconds in (("token shards", source.seconds[3:]), ("packed rows", packed[3:]))
    ]


class _TimedShards(TokenShards):
    """Token shards that keep how long each batch took."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.seconds: list[float] = []

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        """Time one batch."""
        start = time.perf_counter()
        made = super().batch(index, batch_size, sequence_length, seed)
        self.seconds.append(time.perf_counter() - start)
        return made


def _refusals(work: Path, task: Task) -> list[Check]:
    """Count faults that pass: a flipped byte in each shard, a shard gone, other preprocessing."""
    passed = 0
    info = write_cache(task, work / "cache", workers=2)
    for shard in info.shards:
        path = work / "cache" / shard.name
        raw = path.read_bytes()
        place = len(raw) // 2
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        passed += not _is_refused(task, work, shard.name)
        path.unlink()
        passed += not _is_refused(task, work, shard.name)
        path.write_bytes(raw)
    other = Task(name="texts", source=task.source, features=task.features, prepare=task.prepare[:1])
    passed += not _is_refused(other, work, "another preprocessing")
    return [Check(f"5 of {2 * len(info.shards) + 1} faults of a cache, passed", passed, 0, "lower")]


def _is_refused(task: Task, work: Path, name: str) -> bool:
    """Whether opening a cache names what is wrong."""
    try:
        CachedTask(task, work / "cache")
    except DataError as error:
        return name in str(error)
    return False
