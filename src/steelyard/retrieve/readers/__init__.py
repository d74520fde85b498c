"""Language models that read passages: what looking up is worth to them."""

from steelyard.retrieve.readers.copying import CopyingReader
from steelyard.retrieve.readers.reader import PassageReader
from steelyard.retrieve.readers.training import train_reader
from steelyard.retrieve.readers.windows import ReadingWindows, cut_windows

__all__ = ["CopyingReader", "PassageReader", "ReadingWindows", "cut_windows", "train_reader"]
