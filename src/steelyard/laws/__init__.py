"""Scaling laws: measured points in, a fitted law with honest intervals out, and a decision from it."""

from steelyard.laws.decisions.allocate import Allocation, allocate
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit, fit_each
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.holdout import Holdout
from steelyard.laws.fitting.identifiability import FlatDirection
from steelyard.laws.fitting.influence import Influence, Outlier
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.minimizer import huber
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.fitting.terms import Constant, Input, Minimum, Power, Product, Raised, Sum, Term
from steelyard.laws.forms import FORMS, law_named
from steelyard.laws.forms.chinchilla import chinchilla, kaplan, power_law
from steelyard.laws.registry import PublishedLaw, published

__all__ = [
    "FORMS",
    "Allocation",
    "Constant",
    "Estimate",
    "Fit",
    "FlatDirection",
    "Holdout",
    "Influence",
    "Input",
    "Law",
    "Minimum",
    "Outlier",
    "Parameter",
    "Power",
    "Prediction",
    "Prior",
    "Product",
    "Profile",
    "PublishedLaw",
    "Raised",
    "Sum",
    "Term",
    "allocate",
    "chinchilla",
    "fit",
    "fit_each",
    "huber",
    "kaplan",
    "law_named",
    "power_law",
    "published",
]
