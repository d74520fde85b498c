"""Logs: lines to templates and tables, archives that are searched, sessions that stand out."""

from steelyard.data.anomalies.isolation import IsolationForest
from steelyard.data.logs.archive import Compressed, LogArchive, compress
from steelyard.data.logs.detectors import (
    ClusterDetector,
    InvariantDetector,
    LogisticDetector,
    PcaDetector,
    SessionDetector,
)
from steelyard.data.logs.fold import FoldedTemplates, TemplateFold
from steelyard.data.logs.formats import KNOWN_FORMATS, LogFormat, guess_format
from steelyard.data.logs.mining import MinerOptions
from steelyard.data.logs.parsing import ParsedLog, ParseSettings, find_templates, write_parsed
from steelyard.data.logs.reading import LogTable
from steelyard.data.logs.scoring import ParseScore, score_parse
from steelyard.data.logs.sequences import NextEvent, NgramModel, SequenceDetector
from steelyard.data.logs.sessions import count_events, sessions_of, windows_of
from steelyard.data.logs.synthesis import LabelledSession, synthesize_lines, synthesize_sessions
from steelyard.data.logs.templates import TemplateSet, parse_contents
from steelyard.data.logs.watching import LogTail

__all__ = [
    "KNOWN_FORMATS",
    "ClusterDetector",
    "Compressed",
    "FoldedTemplates",
    "InvariantDetector",
    "IsolationForest",
    "LabelledSession",
    "LogArchive",
    "LogFormat",
    "LogTable",
    "LogTail",
    "LogisticDetector",
    "MinerOptions",
    "NextEvent",
    "NgramModel",
    "ParseScore",
    "ParseSettings",
    "ParsedLog",
    "PcaDetector",
    "SequenceDetector",
    "SessionDetector",
    "TemplateFold",
    "TemplateSet",
    "compress",
    "count_events",
    "find_templates",
    "guess_format",
    "parse_contents",
    "score_parse",
    "sessions_of",
    "synthesize_lines",
    "synthesize_sessions",
    "windows_of",
    "write_parsed",
]
