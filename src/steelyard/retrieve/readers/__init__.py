"""Language models that read passages: what looking up is worth to them."""

from steelyard.retrieve.readers.copying import CopyingReader
from steelyard.retrieve.readers.folder import load_reader
from steelyard.retrieve.readers.reader import PassageReader
from steelyard.retrieve.readers.study import ReadingStudy, study_reading, teach_copier
from steelyard.retrieve.readers.training import train_reader
from steelyard.retrieve.readers.windows import ReadingWindows, cut_windows

__all__ = [
    "CopyingReader",
    "PassageReader",
    "ReadingStudy",
    "ReadingWindows",
    "cut_windows",
    "load_reader",
    "study_reading",
    "teach_copier",
    "train_reader",
]
