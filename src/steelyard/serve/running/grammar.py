"""Outputs that must follow a JSON schema, a regular expression, choices or a Lark grammar.

`SamplingParams.grammar` spells a grammar as its kind, a colon and its text: "json_schema:{...}",
"regex:[a-z]+", 'choice:["yes", "no"]' or "lark:start: ...". "json_object" alone is any JSON object.
`spell` writes that, `Grammars.check` refuses what cannot be used.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.states import RequestStates, common_length

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from tokenizers import Tokenizer

__all__ = ["GrammarState", "Grammars", "spell"]

Kind = Literal["json_object", "json_schema", "regex", "choice", "lark"]

_MOST_CHARACTERS = 100_000
_MOST_COMPILED = 64
_MOST_CHOICES = 1000


def spell(kind: Kind, text: str | dict[str, Any] | list[str] = "") -> str:
    """Write a grammar as `SamplingParams.grammar` takes it.

    Args:
        kind: kind of the grammar.
        text: schema (text or parsed), pattern, choices (text of a JSON list or a list) or Lark
            source; nothing for "json_object".

    Returns:
        The spelled grammar; `Grammars.check` says whether it can be used.

    Example:
        >>> spell("choice", ["yes", "no"])
        'choice:["yes", "no"]'
    """
    if kind == "json_object":
        return kind
    return f"{kind}:{text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)}"


class Grammars:
    """Compiles grammars for one tokenizer and follows them along the outputs of requests.

    A compiled grammar is kept and copied for each request. Compiling and every step have limits of
    work, not of time, so that a grammar that is accepted once is always accepted. `check` may be
    called from another thread than `masks`.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_tokens: tuple[int, ...]) -> None:
        """Read the tokenizer's vocabulary.

        Args:
            tokenizer: tokenizer of the model.
            vocab_size: tokens of the model; at least as many as the tokenizer has.
            end_tokens: ids that end an output; a grammar that is complete allows nothing else.

        Raises:
            BackendError: `llguidance` is not installed.
            ConfigError: there is no end token, or the tokenizer is of a kind whose tokens are not
                known as bytes.
        """
        try:
            import llguidance
        except ImportError as error:
            raise BackendError(
                "grammars need llguidance", hint="pip install 'steelyard[serve]'"
            ) from error
        ends = [token for token in end_tokens if 0 <= token < vocab_size]
        if not ends:
            raise ConfigError(
                "grammars need a token that ends an output", hint="name eos_token_id in config.json"
            )
        self._library = llguidance
        self.vocab_size = vocab_size
        self.end_tokens = ends
        plain = type(tokenizer).from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        try:
            self._tokenizer = llguidance.LLTokenizer(
                plain.to_str(), n_vocab=vocab_size, eos_token=ends
            )
        except ValueError as error:
            raise ConfigError(
                f"grammars cannot use this tokenizer: {error}",
                hint="leave grammars out of requests",
            ) from error
        self._limits = llguidance.LLParserLimits(
            # Work, not time: what is accepted once is accepted on a busy machine too.
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_grammar_size=100_000,
            verbose_errors=False,
        )
        self._lock = threading.Lock()
        self._compiled: dict[str, LLMatcher] = {}
        self._states = RequestStates(self._start)

    def check(self, grammar: str) -> None:
        """Refuse a grammar that cannot be followed; what can is compiled and kept.

        Args:
            grammar: grammar that `spell` writes.

        Raises:
            ConfigError: its kind is unknown, it is too large or too complex, or it is not a valid
                schema, pattern or grammar.
        """
        self._matcher(grammar)

    def masks(
        self, requests: list[Request], positions: list[int]
    ) -> tuple[np.ndarray, dict[int, str]]:
        """Mark the tokens that the grammars of requests allow next.

        End tokens before a request's `min_tokens` are held back unless nothing else is allowed.

        Args:
            requests: [N] with a grammar each.
            positions: [N] output tokens each has.

        Returns:
            int32 [N, ceil(V / 32)], bit t % 32 of word t // 32 set for each allowed token t; and
            why requests could not follow theirs, by index: a limit was met.
        """
        masks = np.zeros((len(requests), -(-self.vocab_size // 32)), dtype=np.int32)
        errors = {}
        for at, (request, position) in enumerate(zip(requests, positions, strict=True)):
            reason = self._states.get(request).fill(masks[at], position)
            if reason:
                errors[at] = reason
            elif position < request.params.min_tokens:
                _hold_back(masks[at], self.end_tokens)
        return masks, errors

    def _start(self, request: Request) -> GrammarState:
        """Return the state of a request at its start."""
        matcher = self._matcher(request.params.grammar).deep_copy()
        return GrammarState(request, matcher, self.end_tokens)

    def _matcher(self, grammar: str) -> LLMatcher:
        """Return the compiled grammar at its start; the least recently used one makes room."""
        with self._lock:  # requests are checked on another thread than steps run
            found = self._compiled.pop(grammar, None) or self._compile(grammar)
            self._compiled[grammar] = found
            if len(self._compiled) > _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            return found

    def _compile(self, grammar: str) -> LLMatcher:
        """Compile, with the reason when it cannot be done."""
        if len(grammar) > _MOST_CHARACTERS:
            message = (
                f"the grammar has {len(grammar)} characters, but at most {_MOST_CHARACTERS} "
                f"are allowed"
            )
            raise ConfigError(message, hint="make it smaller")
        kind, _, text = grammar.partition(":")
        matcher = self._library.LLMatcher(
            self._tokenizer, self._source(kind, text), log_level=0, limits=self._limits
        )
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:300]
            raise ConfigError(
                f"the {'grammar' if kind == 'lark' else kind} cannot be followed: {reason}",
                hint="correct or simplify it",
            )
        return matcher

    def _source(self, kind: str, text: str) -> str:
        """Return a grammar in the library's own form."""
        library = self._library.LLMatcher
        if kind == "json_object" and not text:
            return library.grammar_from_json_schema('{"type": "object"}')
        if kind == "json_schema":
            return library.grammar_from_json_schema(json.dumps(_parse(kind, text, (dict, bool))))
        if kind == "regex" and text:
            return library.grammar_from_regex(text)
        if kind == "choice":
            return library.grammar_from_lark(
                "start: " + " | ".join(map(json.dumps, _choices(text)))
            )
        if kind == "lark" and text:
            return library.grammar_from_lark(text)
        raise ConfigError(
            f"unknown grammar {kind[:40]!r}",
            hint='give "json_object", or json_schema, regex, choice or lark, a colon and the text',
        )


class GrammarState:
    """Where one request is in its grammar.

    It follows the request's output, also when that is cut short or replaced.

    Attributes:
        request: whose output it follows.
    """

    def __init__(self, request: Request, matcher: LLMatcher, end_tokens: list[int]) -> None:
        """Stand at the start.

        Args:
            request: request with a grammar.
            matcher: matcher of this request alone, at the start.
            end_tokens: token ids allowed when the grammar is complete.
        """
        self.request = request
        self._matcher = matcher
        self._end_tokens = end_tokens
        self._taken: list[int] = []
        self._consumed = 0

    def fill(self, mask: np.ndarray, length: int) -> str:
        """Mark the tokens allowed after the request's first `length` output tokens.

        Args:
            mask: int32 [ceil(V / 32)] of zeros; bit t % 32 of word t // 32 is set for each allowed
                token t.
            length: output tokens the request has.

        Returns:
            Nothing, or why the output cannot be followed.
        """
        reason = self._follow(self.request.leading(length))
        if not reason and not self._matcher.is_stopped():
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            reason = self._matcher.get_error() if self._matcher.is_error() else ""
        # Complete, or beyond its limits: only an end token is left.
        if reason or not mask.any():
            mask[:] = 0
            for token in self._end_tokens:
                mask[token // 32] |= np.uint32(1 << token % 32).astype(np.int32)
        return " ".join(reason.split())[:300]

    def _follow(self, output: list[int]) -> str:
        """Go to the state after `output`; return why that is not possible."""
        done = len(self._taken)
        # A fork starts from another output, and preemption may cut one short.
        if output[:done] != self._taken:
            done = common_length(self._taken, output)
            self._matcher.rollback(max(self._consumed - done, 0))
            self._consumed = min(self._consumed, done)
            del self._taken[done:]
        fresh = output[done:]
        if fresh and not self._matcher.is_stopped():
            count = self._matcher.try_consume_tokens(fresh)
            self._consumed += count
            self._taken = output[: done + count]
            fresh = fresh[count:]
        if self._matcher.is_error() or not set(fresh) <= set(
            self._end_tokens if self._matcher.is_stopped() else ()
        ):
            return self._matcher.get_error() or "the output does not follow the grammar"
        self._taken = output  # `fill` made this list for this call alone
        return ""


def _parse(kind: str, text: str, types: tuple[type, ...]) -> Any:
    """Read JSON of one of `types`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the {kind} is not JSON: {error}", hint="give valid JSON") from error
    if not isinstance(value, types):
        raise ConfigError(
            f"the {kind} is {type(value).__name__} in JSON, which it cannot be",
            hint="see running.grammar for examples",
        )
    return value


def _choices(text: str) -> list[str]:
    """Read a list of choices."""
    values = _parse("choice", text, (list,))
    if (
        not values
        or len(values) > _MOST_CHOICES
        or not all(isinstance(item, str) and item for item in values)
    ):
        raise ConfigError(
            f"a choice needs 1 to {_MOST_CHOICES} texts, none of them empty",
            hint='for example choice:["yes", "no"]',
        )
    return values


def _hold_back(mask: np.ndarray, tokens: list[int]) -> None:
    """Clear tokens from a mask, unless that leaves none."""
    held = mask.copy()
    for token in tokens:
        held[token // 32] &= ~np.uint32(1 << token % 32).astype(np.int32)
    if held.any():
        mask[:] = held
