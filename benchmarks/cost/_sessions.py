"""Sessions over long documents in virtual time, token by token: the check of `cost.sessions`."""

from collections import deque

from steelyard.cost.longcontext import ServePoint
from steelyard.cost.sessions import Residents, SessionLoad, SessionOutcome
from steelyard.errors import CapacityError
from steelyard.sim.loop import EventLoop

__all__ = ["simulate_sessions"]


class _Device:
    """Runs one step at a time.

    A chunk of the first waiting document, else a token of every answer in progress.
    """

    def __init__(self, point: ServePoint, load: SessionLoad, chunks: int) -> None:
        """Let every user come at time 0."""
        self.point, self.load, self.chunks, self.loop = point, load, chunks, EventLoop()
        self.residents = Residents(point.concurrency)
        self.waiting: deque[int] = deque(range(load.users))
        self.documents: deque[int] = deque()
        self.left: dict[int, int] = {}
        self.answered = dict.fromkeys(range(load.users), -1)
        self.answers: list[float] = []
        self.busy = {"prefill": 0.0, "decode": 0.0, "switch": 0.0}
        self.link_free_s, self.chunks_done, self.stepping = 0.0, 0, False
        self.admit()

    def admit(self) -> None:
        """Let in those who wait, as places allow, and start the moves they need."""
        while self.waiting:
            user = self.waiting[0]
            was_inside = user in self.residents.inside
            out = self.residents.take(user)
            if out is None:
                return
            self.waiting.popleft()
            moves = 0 if was_inside else out + (self.answered[user] >= 0)
            begin_s = max(self.loop.now_s, self.link_free_s) if moves else self.loop.now_s
            end_s = begin_s + moves * self.point.switch_s / 2
            if moves:
                self.link_free_s = end_s
            self.busy["switch"] += end_s - begin_s
            self.loop.at(end_s, lambda user=user: self.ready(user))

    def ready(self, user: int) -> None:
        """Queue a document or join the next token step."""
        if self.answered[user] < 0:
            self.documents.append(user)
        else:
            self.left[user] = self.load.answer_tokens
        if not self.stepping:
            self.stepping = True
            self.loop.after(0.0, self.step, priority=1)

    def step(self) -> None:
        """Start the next step."""
        if self.documents:
            seconds = self.point.prefill_s / self.chunks
            self.busy["prefill"] += seconds
            self.loop.after(seconds, self.chunk)
        elif self.left:
            members = list(self.left)
            own_s = self.point.decode_s_per_token - self.point.weights_read_s
            seconds = self.point.weights_read_s + own_s * len(members)
            self.busy["decode"] += seconds
            self.loop.after(seconds, lambda: self.token(members))
        else:
            self.stepping = False

    def chunk(self) -> None:
        """End a chunk of a document; after the last the first answer starts."""
        self.chunks_done += 1
        if self.chunks_done == self.chunks:
            self.chunks_done = 0
            user = self.documents.popleft()
            self.answered[user] = 0
            self.left[user] = self.load.answer_tokens
        self.step()

    def token(self, members: list[int]) -> None:
        """End a token of each answer."""
        for user in members:
            self.left[user] -= 1
            if self.left[user] == 0:
                self.end(user)
        self.step()

    def end(self, user: int) -> None:
        """End an answer; the user thinks or leaves."""
        del self.left[user]
        self.answers.append(self.loop.now_s)
        self.answered[user] += 1
        if self.answered[user] == self.load.rounds:
            self.residents.leave(user)
        else:
            self.residents.rest(user)
            self.loop.after(self.load.think_s, lambda: self.ask(user))
        self.admit()

    def ask(self, user: int) -> None:
        """Ask the next question."""
        self.waiting.append(user)
        self.admit()


def simulate_sessions(point: ServePoint, load: SessionLoad, *, chunks: int = 8) -> SessionOutcome:
    """Simulate a set of sessions step by step with the same policy of residence as the forecast.

    Args:
        point: the four numbers for one user's context at batch 1.
        load: what the users do.
        chunks: steps a document is read in, at least 1.

    Returns:
        Times and answers per hour.

    Raises:
        CapacityError: not even one user fits.
    """
    if point.concurrency < 1:
        raise CapacityError(
            "weights and one user's cache do not fit",
            hint=f"it needs at least {point.needs_accelerators} accelerators",
        )
    device = _Device(point, load, max(chunks, 1))
    device.loop.run()
    total_s = device.answers[-1]
    rate = len(device.answers) / total_s * 3600
    return SessionOutcome(
        total_s=total_s,
        interactions_per_hour=rate,
        busy_s=device.busy,
        answers_s=tuple(device.answers),
    )
