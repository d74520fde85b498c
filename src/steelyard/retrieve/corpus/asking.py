"""Passages of a folder, and a sentence of each that asks for it: pairs for who has none."""

from pathlib import Path

import numpy as np

from steelyard.errors import DataError
from steelyard.retrieve.corpus.cutting import cut_lines
from steelyard.retrieve.corpus.files import SkippedFiles, list_corpus, read_file
from steelyard.retrieve.text.weighing import made_queries

__all__ = ["asked_passages"]


def asked_passages(folder: Path, words: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Cut the texts of a folder into passages, and take a sentence out of each.

    Args:
        folder: folder of texts, read as `build_corpus` reads it.
        words: most words of a passage.
        seed: seed of the draw of sentences.

    Returns:
        Sentences of at most 12 words, and the passages without them [N] each; the sentence is
        empty, and the passage whole, where there is only one sentence.

    Raises:
        DataError: the folder does not exist, or has no text.

    Source: Lee, Chang and Toutanova 2019 (arXiv 1906.00300), inverse cloze task.
    """
    skipped = SkippedFiles()
    passages = [
        passage.text
        for file in list_corpus([folder], skipped)
        for part in read_file(file, skipped)
        for passage in cut_lines(part, words)
    ]
    if not passages:
        raise DataError(f"no text in {folder}: {skipped.told()}", hint="name files with words")
    queries = [""] * len(passages)
    for place, query, rest in made_queries(passages, np.random.default_rng(seed), len(passages)):
        queries[place], passages[place] = query, rest
    return queries, passages
