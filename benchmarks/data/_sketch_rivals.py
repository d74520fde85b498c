"""Errors of MinHash and LSH against theory, and their speed and memory beside peers."""

import json
import time
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, median_spread, ratio
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.data.sketch import LshTable, MinHasher, hash_column
from steelyard.data.sketch.lsh import band_keys, find_chance
from steelyard.errors import BackendError

__all__ = ["estimator_checks", "rival_checks"]

_K, _SIZE = 128, 300


def _pairs(rng, similarities, size):
    """Return hashes and offsets of pairs of sets, and their exact similarities."""
    sets, offsets, exact = [], [0], []
    for similarity in similarities:
        shared = round(2 * size * similarity / (1 + similarity))
        union = rng.integers(0, 1 << 64, 2 * size - shared, np.uint64)
        sets += [union[:size], union[size - shared :]]
        offsets += [offsets[-1] + size, offsets[-1] + 2 * size]
        exact.append(shared / (2 * size - shared))
    return np.concatenate(sets), np.array(offsets), np.array(exact)


def estimator_checks(quick: bool) -> list[Check]:
    """Compare estimates and rates of candidates with what theory says."""
    rng = np.random.default_rng(7)
    pairs = 2000 if quick else 10_000
    hashes, offsets, exact = _pairs(rng, rng.uniform(0.01, 0.95, pairs), _SIZE)
    signed = MinHasher(1, 1000).signatures(hashes, offsets)
    estimate = (signed[::2] == signed[1::2]).mean(1)
    inside = np.abs(estimate - exact) <= 3 * np.sqrt(exact * (1 - exact) / 1000)
    print(f"{pairs:,} pairs, K = 1000: {inside.mean():.2%} of the estimates within 3 sigma")
    bands, rows, bins, inside_band = 50, 2, 20, 0
    each = 200 if quick else 1000
    for similarity in np.linspace(0.01, 0.4, bins):
        hashes, offsets, exact = _pairs(rng, np.full(each, similarity), _SIZE)
        signed = MinHasher(int(rng.integers(1 << 30)), 100).signatures(hashes, offsets)
        table = LshTable.build(band_keys(signed, bands, rows), rows)
        found = sum(table.hits(signed[row])[0][row + 1] > 0 for row in range(0, 2 * each, 2))
        chance = find_chance(exact[0], bands, rows)
        inside_band += abs(found - each * chance) <= 3 * np.sqrt(each * chance * (1 - chance)) + 0.5
    print(f"rate of candidates: {inside_band} of {bins} similarities within 3 sigma of the formula")
    return [
        Check("1 share of estimates within 3 sigma", float(inside.mean()), 0.99, "higher"),
        Check(
            "1 similarities with candidates as often as theory", inside_band / bins, 0.95, "higher"
        ),
    ]


def _families(rng, sets):
    """Return lists of texts, the two of each pair sharing half of their union."""
    texts, pairs = [], []
    for first in range(0, sets, 2):
        names = [f"token{value}" for value in rng.integers(0, 10**9, 400)]
        texts += [names[:_SIZE], names[400 - _SIZE :]]
        pairs.append([first, first + 1])
    return texts, pairs


def rival_checks(folder: Path, quick: bool) -> list[Check]:
    """Time signatures of the same sets, one thread each, in turn; measure the tables."""
    import pyarrow as pa

    texts, pairs = _families(np.random.default_rng(3), 2000)
    path = folder / "sets.json"
    path.write_text(json.dumps(texts))
    # Tables of texts are Arrow arrays here and lists in the peers: each reads what it is made for.
    column = pa.array([token for tokens in texts for token in tokens])
    offsets = np.arange(0, len(column) + 1, _SIZE)
    plain, quicker = MinHasher(5, _K), MinHasher(5, _K, "one-permutation")
    shape = {"num_perm": _K, "bands": 32, "rows": 4, "sets": str(path), "pairs": pairs}
    exact = 200 / 400
    checks = []
    for peer, bar in (("rensa", 1.0), ("datasketch", 20.0)):
        try:
            process = JsonProcess(
                [str(peers.python(peer)), str(Path(__file__).with_name("_minhash_program.py"))],
                {"peer": peer},
                peer_environment() | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                f"python -m benchmarks peers install {peer}",
            )
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
            continue
        ours, binned, theirs = [], [], []
        for turn in range((4 if quick else 8) if peer == "rensa" else 4):
            told = process.ask(shape)
            began_s = time.perf_counter()
            signed = plain.signatures(hash_column(column), offsets)
            middle_s = time.perf_counter()
            in_bins = quicker.signatures(hash_column(column), offsets)
            # The first round compiles.
            if turn:
                binned.append(time.perf_counter() - middle_s)
                ours.append(middle_s - began_s)
                theirs.append(float(told["seconds"]))
        rate = len(column) / median_spread(theirs).median / 1e6
        error = _error(np.array(told["similarity"]), exact)
        print(f"{process.name}: {rate:.2f} M elements/s, error of estimates {error:.4f}")
        for scheme, seconds, made in (
            ("k-permutation", ours, signed),
            ("one-permutation", binned, in_bins),
        ):
            spread = ratio(theirs, seconds)
            rate = len(column) / median_spread(seconds).median / 1e6
            own_error = _error((made[::2] == made[1::2]).mean(1), exact)
            print(
                f"  ours by {scheme}: {rate:.1f} M elements/s, ratio {spread.median:.2f} "
                f"({spread.low:.2f} to {spread.high:.2f}), error {own_error:.4f}"
            )
            name = f"4 speed of signatures by {scheme} over {peer}"
            checks.append(Check(name, spread.median, bar, "higher"))
        # Two errors of a thousand pairs differ by chance: 3 standard errors are a tenth.
        name = f"4 error of estimates by one-permutation over {peer}'s"
        checks.append(Check(name, own_error / error, 1.1, "lower"))
        if peer == "datasketch":
            checks.append(_table_check(signed, int(told["index_bytes"]), process.name))
        process.close()
    return checks


def _error(estimate, exact: float) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(((estimate - exact) ** 2).mean()))


def _table_check(signed, their_bytes: int, peer: str) -> Check:
    """Compare the memory of tables; keys of one set alone count, as the peer keeps them."""
    table = LshTable.build(band_keys(signed, 32, 4), 4)
    own = sum(part.nbytes for part in table.sections().values())
    whole = own + (32 * len(signed) - len(table.keys)) * 8
    print(
        f"table of {len(signed)} sets: {own:,} bytes, {whole:,} with keys of one set alone, "
        f"{peer} {their_bytes:,}"
    )
    return Check("4 memory of the table over datasketch's", whole / their_bytes, 1 / 3, "lower")
