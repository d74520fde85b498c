"""How far a forecast time may be off: by what was fitted, and how far the work lies from it."""

import math

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost
from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.beliefs import PARTS, Beliefs, part_shares
from steelyard.plan.serving_parts import SERVED_PARTS, ServedParts
from steelyard.quantity import Z80, Forecast, Provenance

__all__ = [
    "NARROW",
    "OTHER_SERVED_CHIP",
    "QUEUE",
    "QUEUE_GROWTH",
    "ROUTED",
    "SERVED_BELIEFS",
    "adapter_relative",
    "beyond_spread",
    "first_token",
    "kind_of",
    "served_relative",
    "step_relative",
    "timed",
]

_TRAINED_ON = ("A100", "H100")
_SERVED_ON = ("H100", "H200")
_OTHER_CHIP = 0.15
"""Spread of the logarithm that an accelerator adds on which no training was fitted; assumed."""
NARROW, ROUTED = 0.534, 0.383
"""Spreads that 8-bit products add, and routed experts: none of the fitted runs has them. Benchmark
`frontier_llm` fits both on all 58 published runs that do and can be costed."""

SERVED_BELIEFS = Beliefs(
    parts=(1.15, 0.268, 0.2, 1.256, 1.388, 0.351), own=0.068, names=SERVED_PARTS
)
"""Spreads of the time per token that benchmark `plan_doubt` fits on half of the published
points of serving on H100 and H200, grouped by model, chip, engine and weights."""
OTHER_SERVED_CHIP = 0.358
"""Spread of the logarithm that another chip adds, fitted there on half of the points of B200 and
A100."""
QUEUE, QUEUE_GROWTH = 0.149, 0.733
"""Time to the first token over that of its own prompt which four of five points stay below: a
factor's logarithm for one request at a time, and what it grows by with that of the requests that
decode together; fitted there as well, on closed loops of clients."""


def step_relative(machine: Machine, cost: StepCost, arch: Architecture) -> float:
    """Return the half-width of the 80 % interval of a step's time.

    A layout that spends its time as the runs do on which the spreads were fitted has a narrow one;
    one that waits for links has a wide one.

    Args:
        machine: accelerator with its links.
        cost: the step of one layout.
        arch: model that is trained.

    Returns:
        A fraction of the time; a calibrated machine's own.
    """
    if machine.provenance == "measured":
        return machine.calibrated_relative
    spread = float(PUBLISHED_BELIEFS.doubt(part_shares(cost)).spread[0])
    return float(np.expm1(Z80 * np.hypot(spread, beyond_spread(machine, arch))))


def beyond_spread(machine: Machine, arch: Architecture) -> float:
    """Return the spread of what all layouts of a job share because no run like it was fitted.

    Args:
        machine: accelerator; another one than those of the fitted runs adds doubt, as does its
            number format.
        arch: model; one with routed experts adds doubt.

    Returns:
        Standard deviation of the logarithm of measured over forecast time; 0 for dense models in
        16 bits on a fitted accelerator.
    """
    reasons = (
        (_OTHER_CHIP, not machine.name.startswith(_TRAINED_ON)),
        (NARROW, machine.dtype_bytes < 2),
        (ROUTED, arch.num_experts > 0),
    )
    return math.sqrt(sum(spread**2 for spread, holds in reasons if holds))


def adapter_relative(machine: Machine, kernels_s: float, links_s: float) -> float:
    """Return the half-width of the 80 % interval of a step that trains adapters.

    Args:
        machine: accelerator with its links.
        kernels_s: seconds of kernels, any scale.
        links_s: seconds beside them that are spent waiting for links, on the same scale.

    Returns:
        A fraction of the time.
    """
    shares = np.zeros(len(PARTS))
    shares[PARTS.index("compute_s")], shares[PARTS.index("data_s")] = kernels_s, links_s
    if machine.provenance == "measured":
        return machine.calibrated_relative
    # No run of adapters was fitted: as doubtful as another accelerator.
    spread = float(PUBLISHED_BELIEFS.doubt(shares / shares.sum()).spread[0])
    return float(np.expm1(Z80 * np.hypot(spread, _OTHER_CHIP)))


def served_relative(machine: Machine, parts: ServedParts) -> float:
    """Return the half-width of the 80 % interval of the time per token of a served answer.

    Args:
        machine: one of the accelerators.
        parts: what a token waits for, of one batch.

    Returns:
        A fraction of the time; a calibrated machine's own.
    """
    if machine.provenance == "measured":
        return machine.calibrated_relative
    spread = float(SERVED_BELIEFS.doubt(parts.shares).spread[0])
    if not machine.name.startswith(_SERVED_ON):
        spread = float(np.hypot(spread, OTHER_SERVED_CHIP))
    return float(np.expm1(Z80 * spread))


def first_token(machine: Machine, prompt_s: float, batch: float, *, relative: float) -> Forecast:
    """Forecast the time to the first token: that of its own prompt, longer where others wait too.

    Args:
        machine: one of the accelerators.
        prompt_s: time of the prompt with nothing else under way.
        batch: requests that are served together.
        relative: half-width of the interval of the prompt's own time.

    Returns:
        The forecast; its interval ends where four of five published points do, as far above the
        value as these wait.
    """
    wait = np.exp(QUEUE + QUEUE_GROWTH * np.log(max(batch, 1.0)))
    # Nothing is known of queues on a machine of one's own: its engine is simulated instead.
    most = 1 + relative if machine.provenance == "measured" else max(float(wait), 1 + relative)
    return Forecast(
        quantity="serve.ttft",
        value=prompt_s,
        low=prompt_s / (1 + relative),
        high=prompt_s * most,
        provenance=kind_of(machine),
        source=machine.source,
    )


def timed(machine: Machine, values: dict[str, float], *, relative: float) -> list[Forecast]:
    """Make the forecasts of quantities that rest on a machine's roofline.

    Args:
        machine: roofline.
        values: values of each quantity.
        relative: half-width of their 80 % intervals.

    Returns:
        The forecasts, in the order given.
    """
    return [
        Forecast.about(
            name, value, relative=relative, provenance=kind_of(machine), source=machine.source
        )
        for name, value in values.items()
    ]


def kind_of(machine: Machine) -> Provenance:
    """Return how a time on a machine comes to be: from measured rates, or assumed ones."""
    return "derived" if machine.provenance == "measured" else "assumed"
