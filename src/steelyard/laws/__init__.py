"""Scaling laws: measured points in, a fitted law with honest intervals out, and a decision from it."""

from steelyard.laws.allocate import Allocation, Estimate, allocate
from steelyard.laws.engine import huber
from steelyard.laws.fitted import Fit, Prediction
from steelyard.laws.fitting import fit
from steelyard.laws.forms import FORMS, chinchilla, kaplan, power_law
from steelyard.laws.holdout import Holdout
from steelyard.laws.identifiability import FlatDirection
from steelyard.laws.law import Law, Parameter, Prior
from steelyard.laws.published import PublishedLaw, published
from steelyard.laws.terms import Constant, Power, Raised, Sum, Term

__all__ = [
    "FORMS",
    "Allocation",
    "Constant",
    "Estimate",
    "Fit",
    "FlatDirection",
    "Holdout",
    "Law",
    "Parameter",
    "Power",
    "Prediction",
    "Prior",
    "PublishedLaw",
    "Raised",
    "Sum",
    "Term",
    "allocate",
    "chinchilla",
    "fit",
    "huber",
    "kaplan",
    "power_law",
    "published",
]
