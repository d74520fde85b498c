"""Tasks: sources of records, what is done to them, caches, and mixtures with rates.

A task is a value: nothing is registered, and whoever has it can read any of its examples.
"""

from steelyard.data.tasks.cache import read_info, write_cache
from steelyard.data.tasks.cached import CachedTask
from steelyard.data.tasks.mixture import TaskMixture, by_examples
from steelyard.data.tasks.records import Generated, JsonLines, Records, TextFiles, TextLines
from steelyard.data.tasks.task import Examples, Feature, Task
from steelyard.data.tasks.vocabularies import (
    ByteVocabulary,
    PassthroughVocabulary,
    TokenizerVocabulary,
)

__all__ = [
    "ByteVocabulary",
    "CachedTask",
    "Examples",
    "Feature",
    "Generated",
    "JsonLines",
    "PassthroughVocabulary",
    "Records",
    "Task",
    "TaskMixture",
    "TextFiles",
    "TextLines",
    "TokenizerVocabulary",
    "by_examples",
    "read_info",
    "write_cache",
]
