"""The most tokens per second that a serving device can reach, and the resource that binds it."""

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.cost.flops import active_matrix_parameters
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import CalibrationError, CapacityError, CatalogError, ConfigError

__all__ = ["Bottleneck", "OptimalThroughput", "optimal_throughput"]

Bottleneck = Literal["memory", "compute", "network"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimalThroughput:
    """One iteration of a steadily loaded engine, each resource by itself.

    Attributes:
        bottleneck: the resource that takes longest.
        memory_s: time to read the weights and every resident key and value once.
        compute_s: time of the dense products of all tokens at the measured rate.
        network_s: time of the all-reduces, 0 on one device.
        requests: resident requests, each decoding one token.
        dense_tokens: tokens of the iteration: those decoded and the prompt tokens that keep pace
            with them.
        tokens_per_s_per_device: prompt and output tokens per second, if the bottleneck never idles.
        active_parameters: parameters that multiply each token.
        gemm_flops_per_s: measured rate of one device.
    """

    bottleneck: Bottleneck
    memory_s: float
    compute_s: float
    network_s: float
    requests: float
    dense_tokens: float
    tokens_per_s_per_device: float
    active_parameters: float
    gemm_flops_per_s: float

    @property
    def iteration_s(self) -> float:
        """Shortest iteration: the time of the bottleneck, with the rest hidden under it."""
        return max(self.memory_s, self.compute_s, self.network_s)

    def fraction(self, tokens_per_s_per_device: float) -> float:
        """Return a measured rate as a share of the optimum."""
        return tokens_per_s_per_device / self.tokens_per_s_per_device


def optimal_throughput(
    arch: Architecture,
    machine: Machine,
    *,
    prompt_tokens: float,
    output_tokens: float,
    tensor_parallel: int = 1,
    gemm_flops_per_s: float = 0.0,
    requests: float = 0.0,
    max_dense_tokens: float = math.inf,
    phase: Literal["both", "decode"] = "both",
    parameters: float = 0.0,
) -> OptimalThroughput:
    """Find the bottleneck of serving and the throughput it allows.

    In the steady state prompt and output tokens are processed in the ratio of their lengths, and a
    request holds its prompt and half of its output on average. Compute-bound, the answer is
    `gemm_flops_per_s / (2 * parameters)` per device, whatever their number. Attention's own
    products are left out, as in the source. Every weight is read in each iteration, also those of
    experts.

    Args:
        arch: model that is served; of a mixture of experts the active parameters multiply and all
            of them are read.
        machine: one device; memory and link rates are taken as they stand, so a machine with
            `Efficiencies.peak()` has the published ones.
        prompt_tokens: mean prompt length, 0 or more.
        output_tokens: mean output length, positive.
        tensor_parallel: devices that share each layer.
        gemm_flops_per_s: measured rate of large matrix products on one device; a calibrated machine
            has its own.
        requests: resident requests; as many as fit the memory when 0.
        max_dense_tokens: tokens beyond which larger products gain nothing; requests are fewer then.
        phase: "decode" when prompts run elsewhere.
        parameters: rounded count that replaces the architecture's exact ones in both weights and
            products.

    Returns:
        The times of one iteration and the throughput.

    Raises:
        CalibrationError: the rate of matrix products was not measured.
        CatalogError: several devices, and the machine lacks `scale_up_bytes_per_s`.
        CapacityError: weights and one request do not fit.
        ConfigError: a length, count or phase is out of range.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 3: 260 TFLOP/s and 70 billion
        parameters allow 1,857 tokens/s.
    """
    _check(prompt_tokens, output_tokens, tensor_parallel, requests, max_dense_tokens, phase)
    rate = _measured_rate(machine, gemm_flops_per_s)
    active = parameters or float(active_matrix_parameters(arch))
    weights = (parameters or sum(parameter_count(arch))) * machine.dtype_bytes
    # Devices beyond the number of key/value heads hold copies of them.
    copies = max(1.0, tensor_parallel / (1 if arch.kv_lora_rank else arch.num_kv_heads))
    mean_tokens = prompt_tokens + output_tokens / 2
    held = mean_tokens * kv_bytes_per_token(arch, machine.dtype_bytes) * copies
    fitting = _fitting_requests(
        arch.name, machine, tensor_parallel, weights, held, max(requests, 1)
    )
    per_request = 1 + (prompt_tokens / output_tokens if phase == "both" else 0.0)
    resident = min(requests or fitting, max_dense_tokens / per_request)
    tokens = resident * per_request
    times: dict[Bottleneck, float] = {
        "memory": (weights + resident * held) / (tensor_parallel * machine.memory_bytes_per_s),
        "compute": 2 * tokens * active / (tensor_parallel * rate),
        "network": _all_reduces_s(arch, machine, tokens, tensor_parallel),
    }
    bottleneck = max(times, key=lambda name: times[name])
    return OptimalThroughput(
        bottleneck=bottleneck,
        memory_s=times["memory"],
        compute_s=times["compute"],
        network_s=times["network"],
        requests=resident,
        dense_tokens=tokens,
        tokens_per_s_per_device=tokens / times[bottleneck] / tensor_parallel,
        active_parameters=active,
        gemm_flops_per_s=rate,
    )


def _fitting_requests(
    name: str, machine: Machine, devices: int, weights: float, held: float, wanted: float
) -> float:
    """Return how many requests of `held` bytes fit beside the weights; refuse fewer than wanted."""
    fitting = (machine.memory_bytes * devices - weights) / held
    if fitting < wanted:
        least = math.ceil((weights + wanted * held) / machine.memory_bytes)
        raise CapacityError(
            f"{name} with {wanted:g} requests does not fit {devices} x {machine.name}",
            hint=f"it needs at least {least} devices",
        )
    return fitting


def _check(
    prompt: float, output: float, devices: int, requests: float, cap: float, phase: str
) -> None:
    """Refuse sizes that mean nothing."""
    for is_good, problem in (
        (
            0 <= prompt < math.inf and 0 < output < math.inf,
            f"prompt_tokens {prompt:g} and output_tokens {output:g}: need a prompt of at least 0 "
            f"and an output above 0",
        ),
        (
            devices >= 1 and requests >= 0 and cap > 0,
            f"tensor_parallel {devices}, requests {requests:g}, max_dense_tokens {cap:g}: need at "
            f"least 1, at least 0, above 0",
        ),
        (phase in ("both", "decode"), f"phase {phase!r} is not one of both, decode"),
    ):
        if not is_good:
            raise ConfigError(problem)


def _measured_rate(machine: Machine, given: float) -> float:
    """Return a measured rate of matrix products, or refuse."""
    if given < 0:
        raise ConfigError(f"gemm_flops_per_s is {given:g}, but cannot be negative")
    rate = given or (machine.peak_flops_per_s if machine.provenance == "measured" else 0.0)
    if not rate:
        raise CalibrationError(
            f"no matrix product was measured on {machine.name}, and a datasheet's peak is not an "
            f"optimum that software reaches",
            hint="give the measured rate of large products (--gemm), or run `steelyard calibrate` "
            "and use this-machine",
        )
    return rate


def _all_reduces_s(arch: Architecture, machine: Machine, tokens: float, devices: int) -> float:
    """Time two ring all-reduces per layer; each sends 2 (N - 1) / N of the activations."""
    if devices == 1:
        return 0.0
    if not machine.scale_up_bytes_per_s:
        raise CatalogError(
            f"{machine.name} lacks scale_up_bytes_per_s",
            hint="add it to a record in the user catalog",
        )
    activations = tokens * arch.hidden_size * machine.dtype_bytes
    sent = 2 * arch.num_layers * 2 * (devices - 1) / devices * activations
    return sent / machine.scale_up_bytes_per_s
