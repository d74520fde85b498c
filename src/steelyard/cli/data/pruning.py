"""`steelyard train score` and `steelyard data prune`: what documents cost, and shards of some."""

from pathlib import Path
from typing import Literal

from steelyard.cli.output import Switch, print_json
from steelyard.runs.progress import progress

__all__ = ["prune", "score"]

Metric = Literal["el2n", "loss", "gradient_norm", "noise_scale"]


def score(
    model: str,
    *,
    data: Path,
    out: Path,
    sequence_length: int = 128,
    part: int = 64,
    json: Switch = False,
) -> None:
    """Score every document of a text with a model: loss, EL2N, gradients, noise scale, duplicates.

    Example: steelyard train score early-run --data tokens --out costs.parquet

    Args:
        model: folder of a model or a run, or a run's id; an early or small one tells most.
        data: folder of token shards that `steelyard data prepare` made.
        out: Parquet file of the table, a row per document.
        sequence_length: tokens of a sequence.
        part: sequences of a part of the text, over which a noise scale is measured.
        json: print JSON instead of a line.
    """
    import polars as pl

    from steelyard.cli.models import model_folder
    from steelyard.data.shards import TokenShards
    from steelyard.files import atomic_path
    from steelyard.nn import checkpoint
    from steelyard.train.measure.document_costs import document_costs

    module = checkpoint.load(model_folder(model))
    with progress("score documents", quiet=json) as advance:
        found = document_costs(
            module,
            TokenShards(data),
            sequence_length=sequence_length,
            part_size=part,
            advance=lambda done: advance(done, "documents"),
        )
    table = pl.DataFrame(found.columns())
    with atomic_path(out) as temporary:
        table.write_parquet(temporary)
    doubles = int((found.duplicate_of != table["document"].to_numpy()).sum())
    if json:
        print_json({"documents": len(table), "near_duplicates": doubles, "table": str(out)})
        return
    print(f"{len(table):,} documents scored, {doubles:,} near duplicates among them: {out}")
    print(f"next: steelyard data prune {data} --scores {out} --keep 0.5 --out pruned")


def prune(
    directory: Path,
    *,
    scores: Path,
    keep: float,
    out: Path,
    by: Metric = "el2n",
    side: Literal["hard", "easy"] = "hard",
    duplicates: Switch = False,
    json: Switch = False,
) -> None:
    """Write token shards of the hardest or the easiest documents only.

    Hard ones pay where data are plenty, easy ones where they are scarce.

    Example: steelyard data prune tokens --scores costs.parquet --keep 0.5 --out pruned

    Args:
        directory: folder that `steelyard data prepare` made.
        scores: table that `steelyard train score` made of it.
        keep: share of the documents to keep, above 0 to 1.
        out: folder for the new shards.
        by: column that says how hard a document is.
        side: which end is kept.
        duplicates: keep near duplicates too.
        json: print JSON instead of a line.
    """
    from steelyard.data.pruning import prune_documents
    from steelyard.data.shard_documents import keep_documents
    from steelyard.data.shards import TokenShards
    from steelyard.laws.tables.files import read_frame

    table = {name: column.to_numpy() for name, column in read_frame(scores).to_dict().items()}
    shards = TokenShards(directory)
    kept = prune_documents(table, keep=keep, by=by, side=side, duplicates=duplicates)
    folder = TokenShards(keep_documents(shards, kept, out))
    if json:
        print_json({"documents": len(kept), "tokens": folder.num_tokens, "out": str(out)})
        return
    print(
        f"{len(kept):,} of {len(table['document']):,} documents kept, {folder.num_tokens:,} of "
        f"{shards.num_tokens:,} tokens: {out}"
    )
