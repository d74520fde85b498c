"""Folders of text as an index: passages with their lines, searched by words and by vectors."""

from steelyard.retrieve.corpus.building import CorpusBuild, CorpusOptions, build_corpus
from steelyard.retrieve.corpus.index import CorpusAnswer, CorpusIndex

__all__ = ["CorpusAnswer", "CorpusBuild", "CorpusIndex", "CorpusOptions", "build_corpus"]
