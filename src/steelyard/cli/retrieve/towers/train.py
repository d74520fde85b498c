"""`steelyard retrieve towers train`: two towers from queries with their documents."""

from pathlib import Path

import numpy as np

from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.towers.recipe import read_recipe
from steelyard.cli.retrieve.towers.texts import (
    PairOptions,
    RunOptions,
    ShapeOptions,
    parameters_of,
    texts_of,
)
from steelyard.data.tokenizer import train_tokenizer
from steelyard.nn.towers import Tower, TowerPair
from steelyard.nn.transformer import build
from steelyard.retrieve.towers import (
    PairTexts,
    QueryEncoder,
    begin_with_texts,
    cloze_pairs,
    contrastive_entropy,
    ndcg,
    ranks_of_own,
    save_encoder,
    title_pairs,
    train_towers,
)
from steelyard.retrieve.towers.training import TrainedTowers
from steelyard.runs.report import Facts, Report, Section
from steelyard.train.contrastive import ContrastiveLoss

__all__ = ["train"]

_HELD_OUT = 10
_TEXTS = 20_000


def train(
    pairs: Path,
    *,
    query: str = "query",
    document: str = "document",
    out: Path,
    learning: PairOptions | None = None,
    shape: ShapeOptions | None = None,
    run: RunOptions | None = None,
    recipe: Path | None = None,
    json: Switch = False,
) -> None:
    """Train two towers on queries with their documents, the second round on hard ones.

    Every tenth query is kept aside, and asked at the end among all documents.

    Example: steelyard retrieve towers train papers.jsonl --query title --document abstract
    --clozes 6000 --out towers

    Args:
        pairs: file of JSON lines, CSV or Parquet with a query and its document in each row; or a
            folder of texts, of whose passages a sentence is the query, and the rest the document.
        query: column of queries, such as titles.
        document: column of documents.
        out: folder for both encoders (`queries`, `documents`) and the run; a call that was killed
            goes on.
        learning: what they learn from.
        shape: what the towers are like.
        run: how they are trained.
        recipe: TOML file, such as recipes/towers.toml, in the place of the three before.
        json: print JSON instead of a table.
    """
    require_place(out, "a folder")
    options, chosen = run or RunOptions(), shape or ShapeOptions()
    lesson = learning or PairOptions()
    walk = read_recipe(recipe)
    if recipe is not None:
        options, chosen, lesson = walk.training, walk.teacher, walk.learning
    asked, texts = texts_of(pairs, query, document, words=walk.words)
    places = np.arange(len(asked))
    # Every tenth query teaches nothing: the quality that is printed is that of these.
    kept, held = places[places % _HELD_OUT != 0], places[::_HELD_OUT].tolist()
    made = _pairs(asked, texts, kept, lesson.clozes, options.seed)
    tokenizer = train_tokenizer(iter([*texts, *made.queries]), lesson.vocabulary)
    sample = [item.ids for item in tokenizer.encode_batch(texts[:_TEXTS])]
    longest = (lesson.query_tokens, lesson.document_tokens)
    towers = _towers(chosen, tokenizer.get_vocab_size(), max(longest), sample, options.seed)
    found = train_towers(
        towers,
        tokenizer,
        (made.queries, made.documents, made.own),
        options.config(),
        out / "run",
        loss=ContrastiveLoss(temperature=lesson.temperature, chunk=lesson.chunk),
        rounds=lesson.rounds,
        hard_negatives=lesson.hard,
        max_tokens=longest,
        groups=made.groups,
    )
    save_encoder(found.documents, out / "documents")
    save_encoder(QueryEncoder(found.queries, found.documents.fingerprint), out / "queries")
    whole = [row for row in held if asked[row].strip() and texts[row].strip()]
    theirs = [asked[row] for row in whole]
    measured = _measured(found, theirs, texts, np.array(whole), lesson.temperature)
    _say(found, towers, made, measured | {"queries_kept_aside": len(whole)}, out, json=json)
    if not json:
        _say_next(pairs, out, document)


def _say_next(pairs: Path, out: Path, document: str) -> None:
    """Name the command that follows."""
    if pairs.is_dir():
        say_next("retrieve", "towers", "distill", out / "queries", pairs, "--out", "student")
    else:
        folder = out / "documents"
        say_next("retrieve", "towers", "encode", folder, pairs, "--document", document)


def _say(
    found: TrainedTowers,
    towers: TowerPair,
    made: PairTexts,
    measured: dict[str, float],
    out: Path,
    *,
    json: bool,
) -> None:
    """Print what was trained and measured."""
    values = {
        "parameters": parameters_of(towers.queries),
        "pairs": len(made),
        "dropped": made.dropped,
        "duplicates": made.duplicates,
        **measured,
        "first_loss": found.losses[0],
        "last_loss": found.losses[-1],
    }
    page = Report(f"Towers in {out}", "", [Section("Trained", [_facts(values, made)])])
    print_report(page, json=json, values=values)


def _pairs(
    asked: list[str], texts: list[str], kept: np.ndarray, clozes: int, seed: int
) -> PairTexts:
    """Return labelled pairs, and sentences of the same documents with the rest."""
    rows = kept.tolist()
    theirs = [texts[row] for row in rows]
    made = title_pairs([asked[row] for row in rows], theirs, sources=kept)
    if clozes:
        made += cloze_pairs(theirs, sources=kept, most=clozes, seed=seed)
    return made


def _towers(
    shape: ShapeOptions, vocabulary: int, positions: int, sample: list[list[int]], seed: int
) -> TowerPair:
    """Return two towers whose token tables begin with what the texts say."""
    arch = shape.architecture(vocabulary, positions)
    towers = []
    for number in (seed, seed + 1):
        tower = Tower(build(arch, seed=number), shape.dim, pooling="mean", seed=seed)
        begin_with_texts(tower.model, sample, seed=seed)
        towers.append(tower)
    return TowerPair(*towers)


def _measured(
    found: TrainedTowers,
    asked: list[str],
    texts: list[str],
    own: np.ndarray,
    temperature: float,
) -> dict[str, float]:
    """Return how well queries that were kept aside find their documents among all."""
    filled = [place for place, text in enumerate(texts) if text.strip()]
    documents = found.documents.encode([texts[place] for place in filled])
    queries = found.queries.encode(asked)
    places = np.searchsorted(filled, own)
    ranks = ranks_of_own(queries @ documents.T, places)
    negatives = min(256, len(filled) - 1)
    nats = contrastive_entropy(
        queries, documents, places, negatives=negatives, temperature=temperature
    )
    return {
        "ndcg_at_10": float(ndcg(ranks).mean()),
        "found_first": float((ranks == 0).mean()),
        "entropy": float(nats.mean()),
        "negatives": negatives,
    }


def _facts(values: dict[str, float], made: PairTexts) -> Facts:
    """Return what people see."""
    return Facts(
        [
            ("parameters without embeddings", f"{values['parameters']:,}", ""),
            ("pairs", f"{len(made):,}", f"{made.dropped:,} rows gave none"),
            ("documents that stand there twice", f"{made.duplicates:,}", "by hash"),
            ("queries kept aside", f"{values['queries_kept_aside']:,}", ""),
            ("nDCG@10 among all documents", f"{values['ndcg_at_10']:.3f}", "measured"),
            ("their document stands first", f"{values['found_first']:.1%}", "measured"),
            (
                f"entropy among {values['negatives']:.0f} others",
                f"{values['entropy']:.3f} nat",
                "measured",
            ),
        ]
    )
