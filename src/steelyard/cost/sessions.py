"""Users who each upload a document and ask about it in rounds: interactions per hour."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from steelyard.cost.longcontext import ServePoint
from steelyard.errors import CapacityError, ConfigError

__all__ = ["Residents", "SessionLoad", "SessionOutcome", "sessions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLoad:
    """What the users do; all arrive at time 0.

    Attributes:
        users: sessions, at least 1.
        rounds: questions per session, at least 1.
        answer_tokens: tokens per answer, at least 1.
        think_s: time between an answer and the next question, 0 or more.
    """

    users: int
    rounds: int = 4
    answer_tokens: int = 250
    think_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse sizes that mean nothing."""
        if min(self.users, self.rounds, self.answer_tokens) < 1 or self.think_s < 0:
            raise ConfigError(
                "users, rounds and answer_tokens must be at least 1, and think_s at least 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOutcome:
    """What the set of sessions took.

    Attributes:
        total_s: time until the last answer.
        interactions_per_hour: answers per hour over that time.
        busy_s: seconds of "prefill" and "decode" on the device and of "switch" on the link.
        answers_s: end of each answer, rising.
    """

    total_s: float
    interactions_per_hour: float
    busy_s: dict[str, float]
    answers_s: tuple[float, ...]

    @property
    def bottleneck(self) -> Literal["prefill", "decode", "switch", "users"]:
        """What is busy longest; "users" when device and link idle more than half of the time."""
        name = max(("prefill", "decode", "switch"), key=lambda item: self.busy_s[item])
        device = self.busy_s["prefill"] + self.busy_s["decode"]
        return "users" if max(device, self.busy_s["switch"]) < self.total_s / 2 else name


class Residents:
    """Policy: whose cache stays on the device.

    The user who has been thinking longest yields; those at work never do.
    """

    def __init__(self, concurrency: int) -> None:
        """Start empty.

        Args:
            concurrency: caches that fit, at least 1.
        """
        self.concurrency = concurrency
        self.inside: set[int] = set()
        self._idle: dict[int, None] = {}

    def take(self, user: int) -> int | None:
        """Bring a user in or keep it in.

        Args:
            user: who is about to work.

        Returns:
            Caches to move out first, 0 or 1; None when the user has to wait.
        """
        self._idle.pop(user, None)
        is_full = user not in self.inside and len(self.inside) >= self.concurrency
        if is_full and not self._idle:
            return None
        if is_full:
            self.leave(next(iter(self._idle)))
        self.inside.add(user)
        return int(is_full)

    def rest(self, user: int) -> None:
        """Mark a resident user as thinking."""
        self._idle[user] = None

    def leave(self, user: int) -> None:
        """Free a user's place."""
        self._idle.pop(user, None)
        self.inside.discard(user)


class _Fluid:
    """Answers progress continuously at the rate the device has for all of them.

    Only ends are events.
    """

    def __init__(self, point: ServePoint, load: SessionLoad) -> None:
        """Queue every upload."""
        self.point = point
        self.load = load
        self.now_s = 0.0
        self.link_free_s = 0.0
        self.rounds: dict[int, int] = {}
        self.waiting: deque[int] = deque(range(load.users))
        self.prefilling: deque[int] = deque()
        self.decoding: dict[int, float] = {}
        self.events: list[tuple[float, int, Callable[[int], None], int]] = []
        self.answers: list[float] = []
        self.busy = {"prefill": 0.0, "decode": 0.0, "switch": 0.0}
        self.residents = Residents(point.concurrency)
        self.count = itertools.count()
        self.admit()

    def admit(self) -> None:
        """Assign places to those who wait, in order.

        Caches move over the link; new documents are read after that.
        """
        while self.waiting:
            user = self.waiting[0]
            resident = user in self.residents.inside
            out = self.residents.take(user)
            if out is None:
                return
            self.waiting.popleft()
            # A returning user's cache moves in; a new user's does not exist yet. Each move is half
            # of a switch.
            moves = 0 if resident else out + (user in self.rounds)
            seconds = moves * self.point.switch_s / 2
            start_s = self.now_s
            if moves:
                start_s = max(self.now_s, self.link_free_s)
                self.link_free_s = start_s + seconds
            self.busy["switch"] += seconds
            self.later(start_s + seconds, self.ready, user)

    def later(self, time_s: float, action: Callable[[int], None], user: int) -> None:
        """Schedule an event; those of the same time run in the order they were scheduled."""
        heapq.heappush(self.events, (time_s, next(self.count), action, user))

    def ready(self, user: int) -> None:
        """Start an answer, or queue the document first."""
        if user in self.rounds:
            self.decoding[user] = float(self.load.answer_tokens)
            return
        self.prefilling.append(user)
        if len(self.prefilling) == 1:
            self.read_next()

    def read_next(self) -> None:
        """Read the first document of the queue; answers stand still meanwhile."""
        self.busy["prefill"] += self.point.prefill_s
        self.later(self.now_s + self.point.prefill_s, self.read, self.prefilling[0])

    def read(self, user: int) -> None:
        """End a document and start its first answer."""
        self.prefilling.popleft()
        self.rounds[user] = 0
        self.ready(user)
        if self.prefilling:
            self.read_next()

    def answered(self, user: int) -> None:
        """End an answer; the user thinks or leaves."""
        del self.decoding[user]
        self.answers.append(self.now_s)
        self.rounds[user] += 1
        if self.rounds[user] == self.load.rounds:
            self.residents.leave(user)
        else:
            self.residents.rest(user)
            self.later(self.now_s + self.load.think_s, self.ask, user)
        self.admit()

    def ask(self, user: int) -> None:
        """Ask the next question."""
        self.waiting.append(user)
        self.admit()

    def token_s(self) -> float:
        """Return the seconds of one token of every answer in progress."""
        shared_s = self.point.weights_read_s
        return shared_s + (self.point.decode_s_per_token - shared_s) * len(self.decoding)

    def run(self) -> None:
        """Go from event to event."""
        while self.events or self.decoding:
            stalled = bool(self.prefilling)
            ends_s = float("inf")
            if self.decoding and not stalled:
                ends_s = self.now_s + min(self.decoding.values()) * self.token_s()
            event_s = self.events[0][0] if self.events else float("inf")
            self.advance(min(ends_s, event_s), stalled)
            if ends_s <= event_s:
                # Tokens are continuous here: a rounding remainder of a token is an end.
                for user in [user for user, left in self.decoding.items() if left < 1e-6]:
                    self.answered(user)
            else:
                _, _, action, user = heapq.heappop(self.events)
                action(user)

    def advance(self, time_s: float, stalled: bool) -> None:
        """Let answers progress until a time."""
        if self.decoding and not stalled:
            spent_s = time_s - self.now_s
            done = spent_s / self.token_s()
            self.busy["decode"] += spent_s
            for user in self.decoding:
                self.decoding[user] -= done
        self.now_s = time_s


def sessions(point: ServePoint, load: SessionLoad) -> SessionOutcome:
    """Forecast a set of sessions on one device (or tensor-parallel group).

    Documents are read one after another, before answers; answers in progress share the read of the
    weights; a user whose cache had to move out gets it back over the link before the answer starts,
    while others go on.

    Args:
        point: four numbers of one user's context at batch 1.
        load: what the users do.

    Returns:
        Times and answers per hour.

    Raises:
        CapacityError: not even one user fits.

    Source: Fu 2024 (arXiv 2405.08944), section 2.1 (session-based throughput).
    """
    if point.concurrency < 1:
        raise CapacityError(
            "weights and one user's cache do not fit",
            hint=f"it needs at least {point.needs_accelerators} accelerators",
        )
    model = _Fluid(point, load)
    model.run()
    return SessionOutcome(
        total_s=model.now_s,
        interactions_per_hour=load.users * load.rounds / model.now_s * 3600,
        busy_s=model.busy,
        answers_s=tuple(sorted(model.answers)),
    )
