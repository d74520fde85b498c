"""Between text and tokens: prompts, chat templates, output text piece by piece, stop strings."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TextCodec", "TextStream", "overlap"]

_END_TOKENS = ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>")


class TextCodec:
    """A model's tokenizer and chat template.

    Without a tokenizer, text is token ids separated by spaces.

    Attributes:
        tokenizer: tokenizer of the model, or None.
        end_tokens: ids that end an output.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        chat_template: str = "",
        end_tokens: tuple[int, ...] = (),
        named_tokens: dict[str, str] | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            tokenizer: tokenizer of the model, or None.
            chat_template: Jinja source as in `tokenizer_config.json`; plain "role: content" lines
                when empty.
            end_tokens: ids that end an output.
            named_tokens: text of the tokens that the template calls `bos_token` and `eos_token`.
        """
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.end_tokens = end_tokens
        self._named_tokens = named_tokens or {}
        self._template: Any = None
        self._is_byte_level = tokenizer is not None and "ByteLevel" in repr(tokenizer.decoder)

    @classmethod
    def load(cls, directory: Path) -> TextCodec:
        """Read the tokenizer, chat template and end tokens of a model, as far as they are there.

        Args:
            directory: folder that holds `tokenizer.json`, `tokenizer_config.json`, `config.json`;
                or a GGUF file, whose own fields are read.

        Returns:
            The codec.

        Raises:
            DataError: a file is there but cannot be read.
            ConfigError: the vocabulary of a GGUF file is of a kind that is not supported.
        """
        if directory.is_file():
            return cls._of_gguf(directory)
        path = directory / "tokenizer.json"
        tokenizer = None
        if path.exists():
            from tokenizers import Tokenizer

            try:
                tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:
                raise DataError(
                    f"{path} is not a tokenizer: {error}",
                    hint="save it again with the tokenizers library",
                ) from error
        settings = (
            read_json(directory / "tokenizer_config.json")
            if (directory / "tokenizer_config.json").exists()
            else {}
        )
        config = (
            read_json(directory / "config.json") if (directory / "config.json").exists() else {}
        )
        ends = config.get("eos_token_id")
        ids = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        if tokenizer is not None and not ids:
            ids = {
                found for name in _END_TOKENS if (found := tokenizer.token_to_id(name)) is not None
            }
        template = settings.get("chat_template")
        return cls(
            tokenizer,
            chat_template=template if isinstance(template, str) else "",
            end_tokens=tuple(sorted(ids)),
            named_tokens=_named_tokens(settings),
        )

    @classmethod
    def _of_gguf(cls, path: Path) -> TextCodec:
        """Make the codec of a GGUF file."""
        from steelyard.nn.gguf.vocabulary import read_vocabulary

        found = read_vocabulary(path)
        return cls(
            found.tokenizer,
            chat_template=found.chat_template,
            end_tokens=found.end_tokens,
            named_tokens=found.named,
        )

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: a prompt.

        Returns:
            Token ids.

        Raises:
            ConfigError: there is no tokenizer and the text is not token ids separated by spaces.
        """
        if self.tokenizer is not None:
            return self.tokenizer.encode(text).ids
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise ConfigError(
                "this model has no tokenizer", hint="send the prompt as a list of token ids"
            ) from error

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template tells the model of functions, in the form of Hermes models."""
        return "<tool_call>" in self.chat_template and "tools" in self.chat_template

    def encode_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids of a conversation that asks for the assistant's turn.

        Args:
            messages: turns with "role" and "content", oldest first.
            tools: functions for a template that knows of them.

        Returns:
            Token ids.

        Raises:
            ConfigError: the template refuses the messages, or there is no tokenizer.
        """
        if not self.chat_template:
            lines = [f"{item['role']}: {item['content']}" for item in messages]
            return self.encode(
                "\n".join([*lines, "assistant:"])
                if self.tokenizer
                else " ".join(item["content"] for item in messages)
            )
        from jinja2.exceptions import TemplateError

        try:
            text = self._compiled().render(
                messages=messages, tools=tools, add_generation_prompt=True, **self._named_tokens
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the chat template refuses the messages: {error}",
                hint="check the roles and their order",
            ) from error
        return (
            self.tokenizer.encode(text, add_special_tokens=False).ids
            if self.tokenizer
            else self.encode(text)
        )

    def _compiled(self) -> Any:
        """Compile the chat template once."""
        if self._template is None:
            from jinja2.exceptions import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            def refuse(message: str) -> None:
                raise TemplateError(message)

            # A template comes with the model, from whoever made it: it runs in a sandbox.
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = refuse
            environment.filters["tojson"] = _to_json
            self._template = environment.from_string(self.chat_template)
        return self._template

    def decode(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        if self.tokenizer is not None:
            return self.tokenizer.decode(tokens)
        return " ".join(map(str, tokens))

    def piece_bytes(self, token: int) -> bytes:
        """Return the bytes one token stands for; empty for an id outside the vocabulary."""
        if self.tokenizer is None:
            return str(token).encode()
        name = self.tokenizer.id_to_token(token)
        if name is None:
            return b""
        if self._is_byte_level:
            known = _byte_alphabet()
            return (
                bytes(known[letter] for letter in name)
                if all(letter in known for letter in name)
                else name.encode()
            )
        if len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        return name.replace("▁", " ").encode()

    def piece(self, token: int) -> str:
        """Return the text one token stands for; bytes that are no whole character are replaced."""
        return self.piece_bytes(token).decode(errors="replace")


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that chat templates write by name, of `tokenizer_config.json`."""
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON as it is; Jinja's own filter escapes it as if for a web page."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in shown]
    return {chr(value): value for value in shown} | {
        chr(256 + place): value for place, value in enumerate(hidden)
    }


class TextStream:
    """Output text of one request, token by token; ends before the first stop string.

    Attributes:
        stopped: whether a stop string was met.
    """

    def __init__(self, codec: TextCodec, stops: list[str]) -> None:
        """Start with no text.

        Args:
            codec: tokenizer of the model.
            stops: strings that end the output; empty ones are ignored.
        """
        self.stopped = False
        self._codec = codec
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._any = False
        self._unfinished: list[int] = []
        self._decoder = None
        if codec.tokenizer is not None:
            from tokenizers.decoders import DecodeStream

            self._decoder = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """Take a token and return the text that is safe to show; nothing after a stop string."""
        if self.stopped:
            return ""
        if not self._stops:
            return self._decode(token)
        self._held += self._decode(token)
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        # The end of the text may be the beginning of a stop string: it is held back until the next
        # token shows whether it is.
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown = self._held[:cut]
        self._held = self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return the text held back in case a stop string followed.

        A character that was never completed becomes U+FFFD.
        """
        shown, self._held = self._held, ""
        if self._unfinished and not self.stopped and self._codec.tokenizer is not None:
            shown += self._codec.tokenizer.decode(self._unfinished)
        self._unfinished.clear()
        return shown

    def _decode(self, token: int) -> str:
        """Return the text a token adds; empty while a character is incomplete."""
        if self._decoder is not None and self._codec.tokenizer is not None:
            # A character may be split over tokens: the decoder says nothing until it is whole.
            text = self._decoder.step(self._codec.tokenizer, token) or ""
            if text:
                self._unfinished.clear()
            else:
                self._unfinished.append(token)
            return text
        space = " " if self._any else ""
        self._any = True
        return f"{space}{token}"


def overlap(text: str, mark: str) -> int:
    """Count the trailing characters that may be the beginning of a mark, such as a stop string."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
