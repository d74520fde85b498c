"""Parameter sets as published, in full precision, with source, units and what counts as a parameter."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.forms.chinchilla import chinchilla, kaplan

__all__ = ["PublishedLaw", "published"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedLaw:
    """A law with the numbers of a paper.

    Attributes:
        name: key in `published`.
        title: what it was fitted on.
        law: the form.
        params: by parameter, natural units, as printed or in the fullest precision the source gives.
        counts: which parameters "parameters" counts: "total" or "non-embedding".
        loss_unit: unit of the predicted loss.
        source: paper and place in it.
        standard_errors: by parameter, natural units, where the paper gives them; empty otherwise.
    """

    name: str
    title: str
    law: Law
    params: dict[str, float]
    counts: Literal["total", "non-embedding"]
    loss_unit: str
    source: str
    standard_errors: dict[str, float]

    def fit(self) -> Fit:
        """Give a fit that predicts and allocates; its intervals have no width, because no joint uncertainty was published."""
        theta = self.law.coordinates(self.params)
        return Fit(law=self.law, theta=theta, samples=np.zeros((0, len(theta))), provenance="published", source=self.source)


_SETS = (
    PublishedLaw(
        name="hoffmann2022",
        title="Chinchilla, MassiveText, 70M-16B parameters",
        law=chinchilla(),
        params={"A": 406.4, "B": 410.7, "E": 1.6934, "alpha": 0.3392, "beta": 0.2849},
        counts="total",
        loss_unit="nat/token",
        source="Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, digits of its TeX source as given by Besiroglu et al. 2024",
        standard_errors={},
    ),
    PublishedLaw(
        name="hoffmann2022_rounded",
        title="Chinchilla as printed in the body of the paper; rounding moves tokens per parameter by tens of percent",
        law=chinchilla(),
        params={"A": 406.4, "B": 410.7, "E": 1.69, "alpha": 0.34, "beta": 0.28},
        counts="total",
        loss_unit="nat/token",
        source="Hoffmann et al. 2022 (arXiv 2203.15556), equation 10",
        standard_errors={},
    ),
    PublishedLaw(
        name="besiroglu2024",
        title="Chinchilla refitted on 240 points read from its figures",
        law=chinchilla(),
        params={"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658},
        counts="total",
        loss_unit="nat/token",
        source="Besiroglu et al. 2024 (arXiv 2404.10102), table 1",
        standard_errors={"A": 124.58, "B": 1293.23, "E": 0.03, "alpha": 0.02, "beta": 0.02},
    ),
    PublishedLaw(
        name="muennighoff2023_c4",
        title="GPT-2 style models on C4, single epoch, alpha and beta tied",
        law=chinchilla(tied=True),
        params={"A": math.exp(6.255414), "B": math.exp(7.3049974), "E": math.exp(0.6254804), "alpha": 0.3526596},
        counts="total",
        loss_unit="nat/token",
        source="Muennighoff et al. 2023 (arXiv 2305.16264), its notebook",
        standard_errors={},
    ),
    PublishedLaw(
        name="muennighoff2023_c4_untied",
        title="GPT-2 style models on C4, the same 54 points with two exponents",
        law=chinchilla(),
        params={"A": math.exp(5.9577184), "B": math.exp(7.9145365), "E": math.exp(0.63032365), "alpha": 0.33480313, "beta": 0.38289225},
        counts="total",
        loss_unit="nat/token",
        source="Muennighoff et al. 2023 (arXiv 2305.16264), its notebook",
        standard_errors={},
    ),
    PublishedLaw(
        name="kaplan2020",
        title="WebText2, 768 to 1.5e9 non-embedding parameters, no floor",
        law=kaplan(),
        params={"Nc": 6.4e13, "Dc": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103},
        counts="non-embedding",
        loss_unit="nat/token",
        source="Kaplan et al. 2020 (arXiv 2001.08361), table 2",
        standard_errors={},
    ),
)

published: dict[str, PublishedLaw] = {item.name: item for item in _SETS}
"""Published parameter sets by name. Losses of different tokenizers and contexts do not compare."""
