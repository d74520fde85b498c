"""Fine-tuning: loss over examples, the data a loss needs, and which model to tune."""

from steelyard.laws.decisions.selection.candidates import Candidate
from steelyard.laws.decisions.selection.select import select_model
from steelyard.laws.forms.rectified import fit_rectified, rectified, required_data, transition

__all__ = ["Candidate", "fit_rectified", "rectified", "required_data", "select_model", "transition"]
