"""`steelyard retrieve towers distill`: a small tower of queries beside a large one's documents."""

from pathlib import Path

import numpy as np

from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.towers.recipe import read_recipe
from steelyard.cli.retrieve.towers.texts import (
    RunOptions,
    ShapeOptions,
    StudentOptions,
    parameters_of,
    texts_of,
)
from steelyard.errors import DataError
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import build
from steelyard.retrieve.towers import (
    QueryEncoder,
    TowerEncoder,
    begin_with_teacher,
    distill_queries,
    load_encoder,
    made_queries,
    save_encoder,
)
from steelyard.runs.report import Facts, Report, Section

__all__ = ["distill"]

_HELD_OUT = 10


def distill(
    teacher: Path,
    queries: Path,
    *,
    query: str = "query",
    out: Path,
    made: int = 0,
    shape: StudentOptions | None = None,
    run: RunOptions | None = None,
    recipe: Path | None = None,
    json: Switch = False,
) -> None:
    """Train a small tower of queries to return a large one's vectors; documents stay.

    Needs queries alone: no documents, no judgements. Every tenth is kept aside, to measure how
    far the vectors are from the teacher's: no score changes by more than that.

    Example: steelyard retrieve towers distill towers/queries queries.jsonl --query text
    --out student

    Args:
        teacher: folder of an encoder, also one of sentence-transformers.
        queries: file of JSON lines, CSV or Parquet; or a folder of texts, sentences of whose
            passages are the queries.
        query: column of queries.
        out: folder of the student and its run; a call that was killed goes on.
        made: queries to make besides: parts of those in the file, or of the passages of a folder,
            some with words left out or exchanged. A column of documents gives them too.
        shape: what the student is like.
        run: how it is trained.
        recipe: TOML file, such as recipes/towers.toml, in the place of the three before.
        json: print JSON instead of a table.
    """
    require_place(out, "a folder")
    found = load_encoder(teacher)
    large = found.encoder if isinstance(found, QueryEncoder) else found
    walk = read_recipe(recipe)
    options, own = run or RunOptions(), shape or StudentOptions()
    if recipe is not None:
        options, own, made = walk.distilling, walk.student, walk.made
    kept, held, sources = _queries(queries, query, walk.words)
    chosen = ShapeOptions(layers=own.layers, width=own.width, dim=large.dim)
    student = _student(large, chosen, options.seed)
    stream = [*kept, *made_queries(sources, made, seed=options.seed)]
    losses = distill_queries(large, student, stream, options.config(), out / "run")
    save_encoder(QueryEncoder(student, found.fingerprint), out)
    distances = np.linalg.norm(large.encode(held) - student.encode(held), axis=1)
    sizes = [parameters_of(one.tower) for one in (large, student)]
    values = {
        "teacher_parameters": sizes[0],
        "student_parameters": sizes[1],
        "queries": len(kept),
        "made": made,
        "queries_kept_aside": len(held),
        "mean_distance": float(distances.mean()),
        "largest_distance": float(distances.max()),
        "last_loss": losses[-1],
        "documents": found.fingerprint,
    }
    facts = Facts(
        [
            ("operations of a query", f"{sizes[0] / sizes[1]:.1f} times fewer", "derived"),
            ("queries", f"{len(kept):,}", f"{len(held):,} more kept aside, {made:,} made"),
            ("mean change of a score, at most", f"{distances.mean():.3f}", "measured"),
            ("largest", f"{distances.max():.3f}", "measured"),
            ("asks documents of", found.fingerprint, ""),
        ]
    )
    page = Report(f"Student in {out}", "", [Section("Distilled", [facts])])
    print_report(page, json=json, values=values)


def _queries(path: Path, column: str, words: int) -> tuple[list[str], list[str], list[str]]:
    """Return queries to learn from, those kept aside, and texts to make more from."""
    columns = (column, "document") if path.is_dir() else (column, column)
    read, passages = texts_of(path, *columns, words=words)
    texts = [text for text in read if text.strip()]
    if len(texts) < _HELD_OUT:
        raise DataError(f"{len(texts)} queries in {path}", hint=f"give {_HELD_OUT} or more")
    kept = [text for place, text in enumerate(texts) if place % _HELD_OUT]
    # Queries that are kept aside stand in no passage: their sentence was taken out.
    return kept, texts[::_HELD_OUT], passages if path.is_dir() else kept


def _student(teacher: TowerEncoder, shape: ShapeOptions, seed: int) -> TowerEncoder:
    """Return a student that knows the teacher's vectors of single tokens."""
    tokenizer = teacher.tokenizer
    arch = shape.architecture(tokenizer.get_vocab_size(), teacher.max_tokens)
    tower = Tower(build(arch, seed=seed), teacher.dim, pooling="mean", seed=seed)
    begin_with_teacher(tower, teacher.tower)
    return TowerEncoder(tower, tokenizer, max_tokens=teacher.max_tokens)
