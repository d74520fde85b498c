"""What a law of your own is made of: terms, parameters, sums and powers."""

from steelyard.laws.fitting.terms import Constant, Input, Minimum, Power, Product, Raised, Sum, Term
from steelyard.laws.forms.powers import monomial, powers
from steelyard.laws.forms.terms import Formula, Number, Quotient, formula_law, positive, real

__all__ = [
    "Constant",
    "Formula",
    "Input",
    "Minimum",
    "Number",
    "Power",
    "Product",
    "Quotient",
    "Raised",
    "Sum",
    "Term",
    "formula_law",
    "monomial",
    "positive",
    "powers",
    "real",
]
