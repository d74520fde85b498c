"""How lines of a log begin: header patterns such as `<Date> <Time> <Level>: <Content>`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from steelyard.errors import ConfigError

__all__ = ["KNOWN_FORMATS", "LogFormat", "guess_format"]

KNOWN_FORMATS = {
    "Android": "<Date> <Time>  <Pid>  <Tid> <Level> <Component>: <Content>",
    "Apache": r"\[<Time>\] \[<Level>\] <Content>",
    "BGL": "<Label> <Timestamp> <Date> <Node> <Time> <NodeRepeat> <Type> <Component> <Level> "
    "<Content>",
    "HDFS": "<Date> <Time> <Pid> <Level> <Component>: <Content>",
    "HPC": "<LogId> <Node> <Component> <State> <Time> <Flag> <Content>",
    "Hadoop": r"<Date> <Time> <Level> \[<Process>\] <Component>: <Content>",
    "HealthApp": r"<Time>\|<Component>\|<Pid>\|<Content>",
    "Linux": r"<Month> <Date> <Time> <Level> <Component>(\[<PID>\])?: <Content>",
    "Mac": r"<Month>  <Date> <Time> <User> <Component>\[<PID>\]( \(<Address>\))?: <Content>",
    "OpenSSH": r"<Date> <Day> <Time> <Component> sshd\[<Pid>\]: <Content>",
    "OpenStack": r"<Logrecord> <Date> <Time> <Pid> <Level> <Component> \[<ADDR>\] <Content>",
    "Proxifier": r"\[<Time>\] <Program> - <Content>",
    "Spark": "<Date> <Time> <Level> <Component>: <Content>",
    "Thunderbird": "<Label> <Timestamp> <Date> <User> <Month> <Day> <Time> <Location> "
    r"<Component>(\[<PID>\])?: <Content>",
    "Windows": "<Date> <Time>, <Level>                  <Component>    <Content>",
    "Zookeeper": r"<Date> <Time> - <Level>  \[<Node>:<Component>@<Id>\] - <Content>",
}
"""Header patterns of the systems of Loghub, as every published table of parsers uses them.

Source: Zhu et al. 2020 (arXiv 2008.06448), settings of the benchmark.
"""
_FIELD = re.compile(r"<([^<>]+)>")
_NUMBER, _WITH_DIGIT = r"-?\d[\d.]*", r".*\d.*"
_LOOKS = {
    "Level": r"(?i)(trace|debug|info|notice|warn(ing)?|err(or)?|crit(ical)?|severe|fatal|failure"
    r"|[viewdf])",
    "Month": r"[A-Z][a-z]{2}",
    "Date": _WITH_DIGIT,
    "Time": _WITH_DIGIT,
    "Timestamp": _NUMBER,
    "LogId": _NUMBER,
    "Flag": _NUMBER,
    "Pid": _NUMBER,
    "Tid": _NUMBER,
    "Program": r".*\.exe.*",
}
"""What a field holds in a line that is of a known format, by its name."""
_MOST_PATTERN_CHARACTERS = 1000


@dataclass(frozen=True)
class LogFormat:
    """The header of a log's lines.

    Attributes:
        pattern: text with `<Field>` for each field, one of them `<Content>` at the end; what stands
            between is a regular expression, and a blank stands for any number of them. Empty where
            lines have no header.
    """

    pattern: str = ""

    def __post_init__(self) -> None:
        """Refuse a pattern without content, of two equal fields, or that is no expression."""
        fields = self.fields
        if not fields or fields[-1] != "Content":
            raise ConfigError(
                f"the log format {self.pattern!r} does not end in <Content>",
                hint="such as '<Date> <Time> <Level> <Component>: <Content>', or a name: "
                + ", ".join(KNOWN_FORMATS),
            )
        if wrong := [name for name in fields if not name.isidentifier()]:
            raise ConfigError(f"the log format has a field {wrong[0]!r}", hint="use letters")
        if twice := [name for name in fields if fields.count(name) > 1]:
            raise ConfigError(f"the log format names the field {twice[0]!r} twice")
        if len(self.pattern) > _MOST_PATTERN_CHARACTERS:
            raise ConfigError(f"a log format has at most {_MOST_PATTERN_CHARACTERS} characters")
        try:
            _ = self.regex
        except re.error as error:
            raise ConfigError(
                f"the log format {self.pattern!r} is no regular expression between its fields: "
                f"{error}",
                hint=r"write \[ for a bracket, \( for a parenthesis, \| for a bar",
            ) from error

    @classmethod
    def of(cls, given: str) -> "LogFormat":
        """Return a format by its name or pattern.

        Args:
            given: a key of `KNOWN_FORMATS` in any case, a pattern, or nothing for lines without a
                header.

        Returns:
            The format.

        Raises:
            ConfigError: it is neither.
        """
        names = {name.lower(): pattern for name, pattern in KNOWN_FORMATS.items()}
        return cls(names.get(given.lower(), given))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields in their order; the last is Content."""
        return tuple(_FIELD.findall(self.pattern)) if self.pattern else ("Content",)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """What a whole line matches, with a group for each field."""
        if not self.pattern:
            return re.compile("^(?P<Content>.*)$", re.DOTALL)
        parts = _FIELD.split(self.pattern)
        # Blanks of a pattern stand for any number of them: columns are often filled up.
        parts[0::2] = [re.sub(" +", r"\\s+", part) for part in parts[0::2]]
        parts[1::2] = [f"(?P<{name}>.*?)" for name in parts[1::2]]
        # Fields without a way back: nine lazy fields would try n^9 cuts of a line that does not
        # match. A line that does is cut alike, for the first way that is tried is the same.
        made, held = "", ""
        for part, text in zip(parts[1:-2:2], parts[2:-2:2], strict=True):
            held += part + text
            if held.count("(") - held.count(r"\(") == held.count(")") - held.count(r"\)"):
                made, held = f"{made}(?>{held})", ""
        return re.compile(f"^{parts[0]}{made}{held}{parts[-2]}{parts[-1]}$", re.DOTALL)


def guess_format(lines: Sequence[str]) -> str:
    """Return the name of the known format that fits lines best.

    A line counts for a format when it matches and its fields hold what their names say: a level a
    level, a time a digit. Of formats with equally many the one with most fields wins.

    Args:
        lines: some lines, such as the first hundred.

    Returns:
        A key of `KNOWN_FORMATS`, empty where none fits half of the lines.
    """
    formats = {name: LogFormat.of(name) for name in KNOWN_FORMATS}
    scores = {
        name: (sum(_fits(item, line) for line in lines), len(item.fields))
        for name, item in formats.items()
    }
    best = max(scores, key=lambda name: scores[name])
    return best if 2 * scores[best][0] > len(lines) else ""


def _fits(format: LogFormat, line: str) -> bool:
    """Return whether a line matches and its fields look like what they are called."""
    found = format.regex.match(line.strip())
    if not found:
        return False
    # What Linux calls its level is a host.
    loose = ("Level",) if "Month" in format.fields else ()
    return all(
        name in loose or re.fullmatch(_LOOKS.get(name, r".+"), value or "-")
        for name, value in found.groupdict().items()
        if name not in ("Content", "PID")
    )
