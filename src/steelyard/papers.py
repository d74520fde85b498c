"""The papers behind the package: the object that implements each, its benchmark, its state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from steelyard.config import load as load_file
from steelyard.errors import ConfigError

__all__ = ["Paper", "State", "load", "select"]

State = Literal["works", "partly", "planned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """One paper and its place in the package.

    Attributes:
        key: number and short name, such as "32-kaplan-scaling-laws".
        title: title as published.
        arxiv: arXiv identifier.
        venue: where and when it appeared; "arXiv" and the year for a preprint.
        room: the room its main object belongs to.
        object: dotted name of the public object that implements it, such as "steelyard.laws.fit";
            empty while planned.
        benchmark: name of the benchmark file that shows it; empty for none.
        state: "planned" (not begun), "partly" (some of it works), "works" (its benchmark meets the
            bars it names).
    """

    key: str
    title: str
    arxiv: str
    venue: str
    room: str
    object: str = ""
    benchmark: str = ""
    state: State = "planned"

    def __post_init__(self) -> None:
        """Refuse a state without what it stands for."""
        if self.state != "planned" and not self.object:
            raise ConfigError(
                f"{self.key}: state {self.state!r} needs an object",
                hint="name the public object that implements the paper",
            )
        if self.state == "works" and not self.benchmark:
            raise ConfigError(
                f"{self.key}: state 'works' needs a benchmark",
                hint="name a benchmark, or use state 'partly'",
            )

    @property
    def url(self) -> str:
        """Address of the abstract."""
        return f"https://arxiv.org/abs/{self.arxiv}"


@dataclass(frozen=True)
class _File:
    """Shape of papers.toml."""

    paper: list[Paper]


def load() -> list[Paper]:
    """Read the list that comes with the package, in the order of the keys."""
    return load_file(Path(__file__).with_name("papers.toml"), _File).paper


def select(*, room: str = "", state: str = "") -> list[Paper]:
    """List the papers of a room or a state.

    Args:
        room: such as "serve"; empty for all.
        state: "works", "partly" or "planned"; empty for all.

    Returns:
        The papers that match both, in the order of the keys.

    Raises:
        ConfigError: no paper belongs to such a room, or there is no such state.
    """
    papers = load()
    for option, value, known in (
        ("--room", room, sorted({paper.room for paper in papers})),
        ("--state", state, list(get_args(State))),
    ):
        if value and value not in known:
            raise ConfigError(f"{option} {value!r} is unknown", hint=f"one of: {', '.join(known)}")
    return [paper for paper in papers if room in ("", paper.room) and state in ("", paper.state)]
