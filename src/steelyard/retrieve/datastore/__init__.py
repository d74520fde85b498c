"""A store of passages that a model may look up: searched once, studied at every size."""

from steelyard.retrieve.datastore.candidates import Candidates
from steelyard.retrieve.datastore.passages import PassageStore, cut_passages, writing_passages
from steelyard.retrieve.datastore.sampling import failure_probability
from steelyard.retrieve.datastore.store import Datastore, PassageEncoder
from steelyard.retrieve.datastore.study import StudyCell, study_grid

__all__ = [
    "Candidates",
    "Datastore",
    "PassageEncoder",
    "PassageStore",
    "StudyCell",
    "cut_passages",
    "failure_probability",
    "study_grid",
    "writing_passages",
]
