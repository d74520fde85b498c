"""A model of a trace: parts that send beside each other, each with arrivals and what they carry."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.errors import ConfigError, TraceError
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models.arrivals import ArrivalModel, fit_arrivals
from steelyard.serve.traces.models.bodies import (
    LengthModel,
    PrefixModel,
    SessionModel,
    fit_lengths,
    unit_of,
)
from steelyard.serve.traces.record import TraceRow

__all__ = ["TraceModel", "TracePart", "fit_trace", "is_model"]

_KIND = "steelyard trace model"
_LEAST_ROWS = 200
_MOST_PARTS = 24


@dataclass(frozen=True, kw_only=True)
class TracePart:
    """What one client, or all the small ones together, send.

    Attributes:
        client: its name.
        share: share of the trace's requests.
        arrivals: when requests arrive, or conversations begin.
        lengths: their lengths; None where another body says them.
        prefix: lengths with what prompts share.
        sessions: conversations.
        tried: what arrival models were tried, with their held-out likelihood.
        tried_lengths: the same of lengths.
    """

    client: str
    share: float
    arrivals: ArrivalModel
    lengths: LengthModel | None = None
    prefix: PrefixModel | None = None
    sessions: SessionModel | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)
    tried_lengths: list[dict[str, Any]] = field(default_factory=list)

    def draw(
        self, generator: np.random.Generator, duration_s: float, first_s: float
    ) -> list[TraceRow]:
        """Draw its requests."""
        lead_s = self._lead_s()
        arrivals = self.arrivals.draw(generator, duration_s + lead_s, first_s=first_s - lead_s)
        times = arrivals - lead_s
        if self.sessions:
            made = self.sessions.rows(times, generator, self.client, duration_s=duration_s)
            return [row for row in made if row.arrival_s >= 0]
        if self.prefix:
            return self.prefix.rows(times, generator, self.client)
        assert self.lengths, "a part has a body"
        inputs, outputs = self.lengths.draw(generator, len(times))
        return [
            TraceRow(arrival_s=at_s, input_tokens=size, output_tokens=answer, client=self.client)
            for at_s, size, answer in zip(
                times.tolist(), inputs.tolist(), outputs.tolist(), strict=True
            )
        ]

    def _lead_s(self) -> float:
        """Return the time before the trace in which conversations begin that reach into it."""
        if not self.sessions:
            return 0.0
        return float(np.quantile([turns[-1][0] for turns in self.sessions.turns], 0.99))


@dataclass(frozen=True, kw_only=True)
class TraceModel:
    """A trace as parts that send beside each other.

    Attributes:
        source: file that it was fitted to.
        requests: rows of it.
        span_s: seconds that it spanned.
        first_s: time of day at its beginning.
        parts: who sends.
        kind: tells such files from others.
    """

    source: str
    requests: int
    span_s: float
    first_s: float
    parts: list[TracePart]
    kind: str = _KIND

    @property
    def rate_per_s(self) -> float:
        """Mean requests per second."""
        return (self.requests - 1) / self.span_s

    def draw(
        self,
        generator: np.random.Generator,
        *,
        duration_s: float,
        rate_per_s: float | None = None,
    ) -> list[TraceRow]:
        """Generate a trace.

        Args:
            generator: source of randomness.
            duration_s: its length, seconds.
            rate_per_s: mean requests per second over the whole; None for that of the source.

        Returns:
            Rows by arrival; parts keep their shares.

        Raises:
            ConfigError: duration or rate is not positive.
        """
        wanted = self.rate_per_s if rate_per_s is None else rate_per_s
        if not 0 < duration_s < np.inf or not 0 < wanted < np.inf:
            raise ConfigError(
                f"cannot generate {duration_s} s at {wanted} requests per s",
                hint="both are above 0",
            )
        factor = wanted / self.rate_per_s
        made: list[TraceRow] = []
        for part in self.parts:
            arrivals = part.arrivals
            # Steps keep their time: what follows over a minute does so at any rate.
            faster = replace(arrivals, rate_per_s=arrivals.rate_per_s * factor)
            made += replace(part, arrivals=faster).draw(generator, duration_s, self.first_s)
        return sorted(made, key=lambda row: row.arrival_s)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        files.write_json(path, to_plain(self))

    @classmethod
    def load(cls, path: Path) -> "TraceModel":
        """Read it from JSON.

        Args:
            path: file that `save` wrote.

        Returns:
            The model.

        Raises:
            ConfigError: the file is no such model; names the field.
        """
        return convert(files.read_json(path), cls, where=str(path))


def is_model(path: Path) -> bool:
    """Tell a model from a trace by how the file begins."""
    try:
        with path.open("rb") as stream:
            return stream.read(1) == b"{" and f'"kind": "{_KIND}"'.encode() in _tail(path)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error}", hint="give a trace or a model") from error


def _tail(path: Path) -> bytes:
    """Return the end of a file, where the kind stands."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 200, 0))
        return stream.read()


def fit_trace(columns: TraceColumns, *, source: str = "", held: float = 0.3) -> TraceModel:
    """Fit a model to a trace; each choice is made by the likelihood of time held out.

    Args:
        columns: the trace, of two rows and more that are apart in time.
        source: name of the file.
        held: share of the time, at the end, that is held out.

    Returns:
        The model, fitted to all once the choices are made.

    Raises:
        TraceError: all rows arrive at once.
    """
    if columns.span_s <= 0:
        raise TraceError(
            "all requests arrive at once, so there is no arrival process to fit",
            hint="give a trace with arrivals",
        )
    counts = np.bincount(columns.client, minlength=len(columns.clients))
    large = [place for place in np.argsort(-counts) if counts[place] >= _LEAST_ROWS][:_MOST_PARTS]
    groups = [(columns.clients[place], columns.client == place) for place in large]
    # Hashed prompts share blocks across clients: they are one part.
    if columns.has_hashes or len(groups) < 2:
        groups = [(columns.clients[int(counts.argmax())], np.ones(len(columns.client), bool))]
    else:
        rest = ~np.isin(columns.client, large)
        groups += [("others", rest)] if rest.sum() > 1 else []
    parts = [_part(columns, name, kept, held) for name, kept in groups]
    return TraceModel(
        source=source,
        requests=len(columns.client),
        span_s=columns.span_s,
        first_s=columns.first_s,
        parts=parts,
    )


def _part(columns: TraceColumns, name: str, kept: Any, held: float) -> TracePart:
    """Fit one part to its rows."""
    own = columns.picked(kept)
    times = own.arrival_s
    place = int(np.searchsorted(times, columns.span_s * (1 - held)))
    sessions = None
    if columns.sessions and (own.session >= 0).any() and not columns.has_hashes:
        sessions = SessionModel.of(own)
        times = times[np.sort(np.unique(unit_of(own), return_index=True)[1])]
    lengths, tried_lengths = fit_lengths(own.input_tokens, own.output_tokens, place)
    has_body = columns.has_hashes or sessions is not None
    arrivals, tried = fit_arrivals(times, columns.first_s, held=held)
    return TracePart(
        client=name,
        share=float(kept.mean()),
        # Over the whole trace, so that parts that begin late add up to its rate.
        arrivals=replace(arrivals, rate_per_s=len(times) / columns.span_s),
        lengths=None if has_body else lengths,
        prefix=PrefixModel.of(own) if columns.has_hashes else None,
        sessions=sessions,
        tried=tried,
        tried_lengths=[] if has_body else tried_lengths,
    )
