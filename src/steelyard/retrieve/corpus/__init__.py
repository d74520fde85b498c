"""Folders of text as an index: passages with their lines, searched by words and by vectors."""

from steelyard.retrieve.corpus.building import build_corpus
from steelyard.retrieve.corpus.index import CorpusAnswer, CorpusIndex
from steelyard.retrieve.corpus.options import CorpusBuild, CorpusOptions

__all__ = ["CorpusAnswer", "CorpusBuild", "CorpusIndex", "CorpusOptions", "build_corpus"]
