"""The tokenizer of a GGUF file, made from its own fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.errors import ConfigError, DataError
from steelyard.nn.gguf.header import GgufHeader, read_header
from steelyard.nn.gguf.splitting import SPLITTERS, Splitter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Vocabulary", "read_vocabulary"]

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Types of tokens."""
_MOST_LETTERS = 1024
"""Bounds the ways to cut a token in two."""
_SPACE = "▁"
_FAMILY = "general.architecture"
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
"""Source: `llama_vocab::impl::load` of llama.cpp (github.com/ggml-org/llama.cpp,
src/llama-vocab.cpp)."""
_ENDS = ("eos", "eot", "eom")
_END_TEXTS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
)
"""Control tokens that end an answer whether or not a file names them."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokenizer and what goes with it.

    Attributes:
        tokenizer: the tokenizer, or None where the file has none.
        named: text of the tokens that chat templates call `bos_token` and `eos_token`.
        end_tokens: ids that end an output.
        chat_template: Jinja source, or an empty string.
    """

    tokenizer: Tokenizer | None
    named: dict[str, str]
    end_tokens: tuple[int, ...]
    chat_template: str


def read_vocabulary(path: Path) -> Vocabulary:
    """Make the tokenizer of a GGUF file.

    Args:
        path: path of the file.

    Returns:
        The tokenizer with special tokens and chat template, as far as the file has them.

    Raises:
        DataError: the file cannot be read, or its fields contradict each other.
        ConfigError: the vocabulary is of a kind that is not supported.
    """
    header = read_header(path)
    model = header.get(f"{_PREFIX}model", str, "none")
    template = header.get("tokenizer.chat_template", str, "")
    if model == "none":
        return Vocabulary(None, {}, (), template)
    if model not in ("gpt2", "llama"):
        raise ConfigError(
            f"{path}: a tokenizer of kind {model!r} is not supported",
            hint="supported: gpt2 (byte-level), llama (SentencePiece with scores)",
        )
    fields = _Fields(header)
    try:
        tokenizer = fields.byte_level() if model == "gpt2" else fields.sentence_pieces()
        fields.add_special(tokenizer)
    except (DataError, ConfigError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f"{path}: its fields make no tokenizer: {error}", hint="fetch or convert it again"
        ) from error
    return Vocabulary(tokenizer, fields.named(), fields.end_tokens(), template)


class _Fields:
    """The fields of a vocabulary, checked against each other."""

    def __init__(self, header: GgufHeader) -> None:
        """Read tokens and their types."""
        self._header = header
        # As in llama.cpp, a token without text gets a name that no text has.
        self._tokens = [
            token or f"[EMPTY_{index}]"
            for index, token in enumerate(header.get(f"{_PREFIX}tokens", list))
        ]
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        if max(map(len, self._tokens), default=0) > _MOST_LETTERS:
            raise self._refuse(f"a token has more than {_MOST_LETTERS} letters")
        if len(self._ids) != len(self._tokens):
            twice = next(t for i, t in enumerate(self._tokens) if self._ids[t] != i)
            raise self._refuse(f"token {twice!r} comes twice")
        self._types = self._numbers("token_type", np.full(len(self._tokens), _NORMAL))
        self._is_byte_level = header.get(f"{_PREFIX}model", str) == "gpt2"

    def byte_level(self) -> Tokenizer:
        """Make a byte-level tokenizer from tokens and merges."""
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        splitter = self._splitter()
        merges = self._merges()
        model = models.BPE(vocab=self._ids, merges=merges, ignore_merges=splitter.keeps_whole)
        tokenizer = Tokenizer(model)
        if splitter.composes:
            tokenizer.normalizer = normalizers.NFC()
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitter.patterns]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def sentence_pieces(self) -> Tokenizer:
        """Make a tokenizer whose spaces are letters, from tokens and scores."""
        from tokenizers import Tokenizer, decoders, models, normalizers

        has_merges = f"{_PREFIX}merges" in self._header.fields
        merges = self._merges() if has_merges else self._merges_by_score()
        unknown = self._named_id("unknown")
        model = models.BPE(
            vocab=self._ids,
            merges=merges,
            unk_token=None if unknown is None else self._tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(model)
        begins = self._flag("add_space_prefix", True)
        replaced = normalizers.Replace(" ", _SPACE)
        tokenizer.normalizer = (
            normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if begins else replaced
        )
        steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(
            [*steps, decoders.Strip(" ", 1, 0)] if begins else steps
        )
        return tokenizer

    def add_special(self, tokenizer: Tokenizer) -> None:
        """Tell a tokenizer which tokens are never cut, and which begin and end a prompt."""
        from tokenizers import AddedToken, processors

        controls = [self._tokens[at] for at in np.flatnonzero(self._types == _CONTROL)]
        own = [self._tokens[at] for at in np.flatnonzero(self._types == _USER_DEFINED)]
        # Phi-3's swallow the spaces after them; files do not say so.
        strips = not self._is_byte_level and self._header.fields.get(_FAMILY) == "phi3"
        tokenizer.add_special_tokens(
            [
                AddedToken(text, normalized=False, rstrip=strips and text not in _UNSTRIPPED)
                for text in controls
            ]
        )
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in own])
        adds = self._splitter().adds_bos if self._is_byte_level else True
        begin = self._named_id("bos") if self._flag("add_bos_token", adds) else None
        end = self._named_id("eos") if self._flag("add_eos_token", False) else None
        around = [self._tokens[token] for token in (begin, end) if token is not None]
        if around:
            first = [] if begin is None else [self._tokens[begin]]
            last = [] if end is None else [self._tokens[end]]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*first, "$A", *last],
                special_tokens=[(text, self._ids[text]) for text in dict.fromkeys(around)],
            )

    def named(self) -> dict[str, str]:
        """Return the tokens that chat templates write by name."""
        found = {f"{name}_token": self._named_id(name) for name in ("bos", "eos")}
        return {name: self._tokens[token] for name, token in found.items() if token is not None}

    def end_tokens(self) -> tuple[int, ...]:
        """Return the ids that end an output."""
        named = {token for name in _ENDS if (token := self._named_id(name)) is not None}
        usual = {self._ids[text] for text in _END_TEXTS if text in self._ids}
        controls = {token for token in usual if self._types[token] == _CONTROL}
        return tuple(sorted(named | controls))

    def _splitter(self) -> Splitter:
        """Return how text is cut into words."""
        name = self._header.get(f"{_PREFIX}pre", str, "")
        if name not in SPLITTERS:
            raise ConfigError(
                f"{self._header.path}: the pre-tokenizer {name!r} is not supported",
                hint=f"supported: {', '.join(filter(None, SPLITTERS))}",
            )
        return SPLITTERS[name]

    def _merges(self) -> list[tuple[str, str]]:
        """Return the merges of the file, first ones first."""
        found = []
        for line in self._header.get(f"{_PREFIX}merges", list):
            left, _, right = line[1:].partition(" ")
            found.append((line[:1] + left, right))
        return found

    def _merges_by_score(self) -> list[tuple[str, str]]:
        """Return every way to make a token of two others, those of the best scores first.

        Source: `generate_merges` of `transformers` (convert_slow_tokenizer.py).
        """
        scores = self._numbers("scores", None)
        # Tokens that no text becomes by merging its letters.
        never = np.isin(self._types, (_UNKNOWN, _CONTROL, _BYTE))
        ids, found = self._ids, []
        for index, token in enumerate(self._tokens):
            if never[index]:
                continue
            for cut in range(1, len(token)):
                left, right = ids.get(token[:cut]), ids.get(token[cut:])
                if left is not None and right is not None:
                    # Among equals the longest left part comes first, as there.
                    found.append(
                        (-float(scores[index]), -cut, cut - len(token), index, left, right)
                    )
        found.sort()
        return [(self._tokens[left], self._tokens[right]) for *_, left, right in found]

    def _numbers(self, name: str, default: np.ndarray | None) -> np.ndarray:
        """Return one number per token; negative infinity or NaN is no score."""
        values = self._header.get(f"{_PREFIX}{name}", np.ndarray, default)
        if len(values) != len(self._tokens) or not np.isfinite(values).all():
            raise self._refuse(
                f"{name} has {len(values)} values for {len(self._tokens)} tokens, or one of them "
                f"is not finite"
            )
        return values

    def _flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return self._header.get(f"{_PREFIX}{name}", bool, default)

    def _named_id(self, name: str) -> int | None:
        """Return the id of a named token; None where it has none."""
        usual = {} if self._is_byte_level else {"bos": 1, "eos": 2, "unknown": 0}
        token = self._header.get(f"{_PREFIX}{name}_token_id", int, usual.get(name, -1))
        if token == -1 or (token == usual.get(name) and token >= len(self._tokens)):
            return None
        if not 0 <= token < len(self._tokens):
            raise self._refuse(f"{name}_token_id is {token}, of {len(self._tokens)} tokens")
        return token

    def _refuse(self, reason: str) -> DataError:
        """Make the error of a field that contradicts others."""
        return DataError(f"{self._header.path}: {reason}", hint="fetch or convert it again")
