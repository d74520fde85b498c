"""Programs of compiled functions, who submits them, and what control of them costs."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import ConfigError, FitError, require

__all__ = ["Computation", "ControlCosts", "Tenant", "fit_control_costs"]


@dataclass(frozen=True, slots=True)
class Computation:
    """A compiled function on all devices of some hosts; it runs on them at the same time.

    Attributes:
        hosts: numbers of the hosts.
        device_s: seconds on the devices.
    """

    hosts: tuple[int, ...]
    device_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """A client that submits one program again and again.

    Attributes:
        program: computations, each of which reads the results of the one before.
        num_programs: how often it is run.
        in_flight: runs that are submitted and not finished at most.
        weight: share of the devices, over the sum of all clients' weights.
    """

    program: tuple[Computation, ...]
    num_programs: int
    in_flight: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        good = all(item.hosts and 0 <= item.device_s < math.inf for item in self.program)
        require(
            self,
            program=(bool(self.program) and good, "computations of 0 s or more on some hosts"),
            num_programs=(self.num_programs >= 1, "at least 1"),
            in_flight=(self.in_flight >= 1, "at least 1"),
            weight=(0 < self.weight < math.inf, "finite and above 0"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlCosts:
    """Seconds of control.

    Attributes:
        schedule_s: the controller's work for a program, or for each computation where they are
            dispatched one by one.
        fan_out_s: the controller's work for each host that it sends a message to.
        message_s: latency from the controller to a host, and of a client's call.
        prepare_s: a host's work for a computation: buffers, arguments, launch.
    """

    schedule_s: float = 0.0
    fan_out_s: float = 0.0
    message_s: float = 0.0
    prepare_s: float = 0.0

    def __post_init__(self) -> None:
        names = ("schedule_s", "fan_out_s", "message_s", "prepare_s")
        rules = {
            name: (0 <= getattr(self, name) < math.inf, "finite seconds of 0 or more")
            for name in names
        }
        require(self, **rules)

    def break_even_s(self, num_hosts: int) -> float:
        """Return the shortest computation that hides the control of the next one.

        Args:
            num_hosts: hosts of the computation, at least 1.

        Returns:
            Seconds: the slower of the controller's and a host's work for one computation. Longer
            ones run as fast as under a controller on every host.

        Raises:
            ConfigError: fewer than 1 host.
        """
        if num_hosts < 1:
            raise ConfigError(f"num_hosts is {num_hosts}, but must be at least 1")
        # Controller and hosts work on different computations at once: the slower side decides.
        return max(self.schedule_s + num_hosts * self.fan_out_s, self.prepare_s)

    def program_s(self, program: tuple[Computation, ...], *, in_parallel: bool) -> float:
        """Return the seconds from a program's submission to its end, alone and on separate hosts.

        Args:
            program: computations, no two on one host.
            in_parallel: all of it is dispatched at once; else each computation after the one
                before has ended.

        Returns:
            With H hosts, n computations and device time c in all, and a, f, m, p for the costs
            above: 2 m + a + f H + p + c in parallel where the first one lasts longer than the
            others' preparation, else m + n (a + m + p) + f H + c.
        """
        device_s = sum(item.device_s for item in program)
        sent_s = self.fan_out_s * sum(len(item.hosts) for item in program)
        rounds = 1 if in_parallel else len(program)
        return (
            self.message_s
            + rounds * (self.schedule_s + self.message_s + self.prepare_s)
            + sent_s
            + device_s
        )


def fit_control_costs(num_hosts: ArrayLike, break_even_s: ArrayLike) -> ControlCosts:
    """Learn the controller's costs from measured break-even times, by least squares.

    Args:
        num_hosts: [n] hosts, at least 2 different numbers.
        break_even_s: [n] seconds of the shortest computation that hid its control.

    Returns:
        Costs per program and per host; those of messages and hosts are left at 0.

    Raises:
        FitError: fewer than two different numbers of hosts, or costs that would be negative.
    """
    hosts, seconds = (np.asarray(item, dtype=float) for item in (num_hosts, break_even_s))
    if hosts.shape != seconds.shape or len(np.unique(hosts)) < 2:
        raise FitError(
            "at least two different numbers of hosts are needed, each with its break-even time",
            hint="measure on more hosts",
        )
    slope, constant = np.polyfit(hosts, seconds, 1)
    # Noise on few points can tilt the line below nothing.
    if slope < 0 or constant < 0:
        raise FitError(
            f"break-even times give {constant:.3g} s and {slope:.3g} s per host, but costs are "
            "not negative",
            hint="measure again, or leave points out",
        )
    return ControlCosts(schedule_s=float(constant), fan_out_s=float(slope))
