"""Who may be told what of a table: tags, anonymity, noise on a budget, erasure, audits, bias."""

from steelyard.data.governance.anonymity import AnonymityReport, GroupCountsFold, check_anonymity
from steelyard.data.governance.audit import AuditLog
from steelyard.data.governance.bias import SliceScores, score_slices
from steelyard.data.governance.erasure import Erasure, erase
from steelyard.data.governance.lineage import Lineage, LineageRecord
from steelyard.data.governance.noise import discrete_gaussian, discrete_laplace
from steelyard.data.governance.privacy import NoisyAnswer, PrivacyLedger, noisy_aggregate
from steelyard.data.governance.tags import TAGS, ColumnTags, suggest_tags

__all__ = [
    "TAGS",
    "AnonymityReport",
    "AuditLog",
    "ColumnTags",
    "Erasure",
    "GroupCountsFold",
    "Lineage",
    "LineageRecord",
    "NoisyAnswer",
    "PrivacyLedger",
    "SliceScores",
    "check_anonymity",
    "discrete_gaussian",
    "discrete_laplace",
    "erase",
    "noisy_aggregate",
    "score_slices",
    "suggest_tags",
]
