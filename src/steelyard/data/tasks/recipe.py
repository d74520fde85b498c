"""Tasks and mixtures written down in a TOML file."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from steelyard.config import load
from steelyard.data.sources import default_sources
from steelyard.data.tasks.cached import CachedTask
from steelyard.data.tasks.mixture import Rate, TaskMixture, by_examples
from steelyard.data.tasks.records import Generated, JsonLines, RecordSource, TextFiles, TextLines
from steelyard.data.tasks.steps import corrupt_spans, documents, rename, split_tokens
from steelyard.data.tasks.synthetic import SYNTHETIC
from steelyard.data.tasks.task import Examples, Feature, Step, Task, refuse
from steelyard.data.tasks.vocabularies import ByteVocabulary, TokenizerVocabulary, TokenVocabulary
from steelyard.errors import ConfigError
from steelyard.units import parse

__all__ = ["DataRecipe", "MixtureRecipe", "TaskRecipe", "VocabularyRecipe", "load_recipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyRecipe:
    """How text is encoded, the same for all tasks.

    Attributes:
        tokenizer: folder that `steelyard data prepare` made; empty for bytes.
        sentinels: ids above that stand for spans, 0 to 1000.
    """

    tokenizer: str = ""
    sentinels: int = 0

    def build(self) -> TokenVocabulary:
        """Return the vocabulary."""
        if not 0 <= self.sentinels <= 1000:
            raise ConfigError(f"sentinels = {self.sentinels}", hint="give 0 to 1000")
        if self.tokenizer:
            folder = Path(self.tokenizer).expanduser()
            return TokenizerVocabulary(folder=folder, sentinels=self.sentinels)
        return ByteVocabulary(sentinels=self.sentinels)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecipe:
    """One task.

    Attributes:
        files: files and folders; none takes the running Python's own texts.
        format: "documents" cleans files and cuts them into documents, "lines" takes each line,
            "json" each line's object.
        fields: what an object of "json" calls "inputs" and "targets".
        max_bytes: amount of files to stop at, such as "4 MB"; empty for all.
        generate: "copy", "reverse" or "add" instead of files.
        examples: number of generated examples.
        seed: seed of generated examples, 0 or more.
        piece: tokens after which a document is cut into pieces; 0 keeps it whole.
        corrupt: whether spans are cut out of the targets anew at every reading.
    """

    files: tuple[str, ...] = ()
    format: Literal["documents", "lines", "json"] = "documents"
    fields: dict[str, str] = field(default_factory=dict)
    max_bytes: str = ""
    generate: Literal["", "copy", "reverse", "add"] = ""
    examples: int = 0
    seed: int = 0
    piece: int = 0
    corrupt: bool = False

    def build(self, name: str, vocabulary: TokenVocabulary) -> Task:
        """Return the task.

        Args:
            name: its name.
            vocabulary: encodes its features.

        Returns:
            The task.

        Raises:
            ConfigError: fields contradict each other; all violations are named.
        """
        self._check(name, vocabulary)
        # Corruption makes inputs of targets, so features of both exist before any record has them.
        paired = bool(self.generate) or self.format == "json" or self.corrupt
        names = ("inputs", "targets") if paired else ("targets",)
        features = {item: Feature(vocabulary=vocabulary) for item in names}
        steps = (partial(corrupt_spans, size=vocabulary.size),) if self.corrupt else ()
        return Task(
            name=name,
            source=self._source(),
            features=features,
            prepare=self._prepare(vocabulary),
            steps=steps,
        )

    def _source(self) -> RecordSource:
        """Return where records come from."""
        if self.generate:
            return Generated(make=SYNTHETIC[self.generate], size=self.examples, seed=self.seed)
        paths = [Path(path).expanduser() for path in self.files] or default_sources()
        limit = int(parse(self.max_bytes, "byte", where="max_bytes")) if self.max_bytes else None
        kind = {"documents": TextFiles, "lines": TextLines, "json": JsonLines}[self.format]
        return kind(*paths, max_bytes=limit)

    def _prepare(self, vocabulary: TokenVocabulary) -> tuple[Step, ...]:
        """Return the steps done once."""
        if self.generate:
            return ()
        if self.format == "json":
            old = {new: self.fields.get(new, new) for new in ("inputs", "targets")}
            return (partial(rename, fields=old),)
        clean = (documents,) if self.format == "documents" else ()
        named = partial(rename, fields={"targets": "text"})
        cut = (partial(split_tokens, vocabulary=vocabulary, length=self.piece),)
        return (*clean, named, *(cut if self.piece else ()))

    def _check(self, name: str, vocabulary: TokenVocabulary) -> None:
        """Refuse fields that contradict each other."""
        text = not self.generate and self.format != "json"
        rules = {
            "generate needs examples of 1 or more": not self.generate or self.examples >= 1,
            "examples and seed are for generate only": bool(self.generate)
            or not (self.examples or self.seed),
            "files are not read where records are generated": not (self.generate and self.files),
            "fields is for the format json only": self.format == "json" or not self.fields,
            'fields names "inputs" and "targets" only': set(self.fields) <= {"inputs", "targets"},
            "piece is for documents and lines, 0 or more": self.piece == 0
            or (text and self.piece > 0),
            "corrupt is for documents and lines": text or not self.corrupt,
            "corrupt needs sentinels in the vocabulary": bool(vocabulary.sentinels)
            or not self.corrupt,
        }
        refuse(f"task {name!r}", [rule for rule, good in rules.items() if not good])


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureRecipe:
    """Tasks and other mixtures with rates.

    Attributes:
        rates: rate of each task by name: a number, or "examples" for the number of examples.
        scale: factor on numbers of examples.
        maximum: most examples that count; 0 for no limit.
        temperature: T of the power 1 / T on numbers of examples.
    """

    rates: dict[str, float | Literal["examples"]]
    scale: float = 1.0
    maximum: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecipe:
    """Tasks and mixtures by name.

    Attributes:
        tasks: the tasks.
        mixtures: the mixtures.
        vocabulary: how text is encoded.
    """

    tasks: dict[str, TaskRecipe]
    mixtures: dict[str, MixtureRecipe] = field(default_factory=dict)
    vocabulary: VocabularyRecipe = field(default_factory=VocabularyRecipe)

    def task(self, name: str) -> Task:
        """Return a task by its name.

        Args:
            name: name in the recipe.

        Returns:
            The task.

        Raises:
            ConfigError: there is none of that name, or it is wrong.
        """
        self._known(name, list(self.tasks), "task")
        return self.tasks[name].build(name, self.vocabulary.build())

    def open(self, name: str, cache: Path | None = None) -> Examples | TaskMixture:
        """Return a task or mixture by its name.

        Args:
            name: name in the recipe.
            cache: folder in which `steelyard data cache` put the tasks; None to read sources.

        Returns:
            The task, its cache, or the mixture of such.

        Raises:
            ConfigError: a name is unknown, or a mixture contains itself.
            DataError: a cache is missing, damaged or of another preprocessing.
        """
        return self._open(name, cache, {}, ())

    def _open(
        self, name: str, cache: Path | None, opened: dict[str, Examples], above: tuple[str, ...]
    ) -> Examples | TaskMixture:
        """Open a name, each task once."""
        if name in above:
            raise ConfigError(
                f"mixture {name!r} contains itself: {' > '.join((*above, name))}",
                hint="leave it out of its own parts",
            )
        self._known(name, [*self.tasks, *self.mixtures], "task or mixture")
        if name in self.tasks:
            # A mixture knows a task that is reached twice by its identity, so each is built once.
            if name not in opened:
                task = self.task(name)
                opened[name] = CachedTask(task, cache / name) if cache else task
            return opened[name]
        mixture = self.mixtures[name]
        rule = by_examples(
            scale=mixture.scale,
            maximum=mixture.maximum or None,
            temperature=mixture.temperature,
        )
        parts: Mapping[str, Rate] = {
            part: rule if rate == "examples" else float(rate)
            for part, rate in mixture.rates.items()
        }
        return TaskMixture(
            name,
            tuple(
                (self._open(part, cache, opened, (*above, name)), rate)
                for part, rate in parts.items()
            ),
        )

    @staticmethod
    def _known(name: str, known: list[str], what: str) -> None:
        """Refuse an unknown name and say which are like it."""
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ConfigError(
                f"there is no {what} {name!r}", hint=f"{guess}there are {', '.join(known)}"
            )


def load_recipe(path: Path) -> DataRecipe:
    """Read a recipe of tasks and mixtures.

    Args:
        path: TOML or JSON file.

    Returns:
        The recipe; names in mixtures are known.

    Raises:
        ConfigError: the file cannot be read, a field is wrong, or names are unknown or stand for a
            task and a mixture; all wrong names are listed.
    """
    recipe = load(path, DataRecipe)
    known = [*recipe.tasks, *recipe.mixtures]
    wrong = [] if recipe.tasks else ["it has no tasks"]
    both = sorted(recipe.tasks.keys() & recipe.mixtures.keys())
    wrong += [f"{name!r} is both a task and a mixture" for name in both]
    for name, mixture in recipe.mixtures.items():
        for part in mixture.rates:
            if part not in known:
                near = difflib.get_close_matches(part, known, n=1)
                guess = f" (did you mean {near[0]!r}?)" if near else ""
                wrong.append(f"mixture {name!r} names an unknown {part!r}{guess}")
    refuse(str(path), wrong)
    return recipe
