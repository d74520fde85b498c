"""Between text and tokens: encoding prompts, chat templates, and output text piece by piece with stop strings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TextCodec", "TextStream"]

_END_TOKENS = ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>")


class TextCodec:
    """A model's tokenizer and chat template; without a tokenizer, text is token ids apart by spaces.

    Attributes:
        tokenizer: or None.
        end_tokens: ids that end an output.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, *, chat_template: str = "", end_tokens: tuple[int, ...] = ()) -> None:
        """Keep the parts.

        Args:
            tokenizer: or None.
            chat_template: Jinja source as in `tokenizer_config.json`; plain "role: content" lines when empty.
            end_tokens: ids that end an output.
        """
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.end_tokens = end_tokens

    @classmethod
    def load(cls, directory: Path) -> TextCodec:
        """Read `tokenizer.json`, `tokenizer_config.json` and `config.json` of a model directory, as far as they are there.

        Args:
            directory: of the model.

        Returns:
            The codec.

        Raises:
            DataError: a file is there but cannot be read.
        """
        path = directory / "tokenizer.json"
        tokenizer = None
        if path.exists():
            from tokenizers import Tokenizer

            try:
                tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:
                raise DataError(f"{path} is not a tokenizer: {error}", hint="save it again with the tokenizers library") from error
        settings = read_json(directory / "tokenizer_config.json") if (directory / "tokenizer_config.json").exists() else {}
        config = read_json(directory / "config.json") if (directory / "config.json").exists() else {}
        ends = config.get("eos_token_id")
        ids = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        if tokenizer is not None and not ids:
            ids = {found for name in _END_TOKENS if (found := tokenizer.token_to_id(name)) is not None}
        template = settings.get("chat_template")
        return cls(tokenizer, chat_template=template if isinstance(template, str) else "", end_tokens=tuple(sorted(ids)))

    def encode(self, text: str) -> list[int]:
        """Give the token ids of a text.

        Args:
            text: a prompt.

        Returns:
            Token ids.

        Raises:
            ConfigError: there is no tokenizer and the text is not token ids apart by spaces.
        """
        if self.tokenizer is not None:
            return self.tokenizer.encode(text).ids
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise ConfigError("this model has no tokenizer", hint="give the prompt as a list of token ids") from error

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Give the token ids of a conversation that asks for the assistant's turn.

        Args:
            messages: with "role" and "content".

        Returns:
            Token ids.

        Raises:
            ConfigError: the template refuses the messages, or there is no tokenizer.
        """
        if not self.chat_template:
            lines = [f"{item['role']}: {item['content']}" for item in messages]
            return self.encode("\n".join([*lines, "assistant:"]) if self.tokenizer else " ".join(item["content"] for item in messages))
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            text = environment.from_string(self.chat_template).render(messages=messages, add_generation_prompt=True)
        except TemplateError as error:
            raise ConfigError(f"the chat template refuses the messages: {error}", hint="check the roles and their order") from error
        return self.tokenizer.encode(text, add_special_tokens=False).ids if self.tokenizer else self.encode(text)


class TextStream:
    """Output text of one request, token by token; ends before the first stop string.

    Attributes:
        stopped: whether a stop string was met.
    """

    def __init__(self, codec: TextCodec, stops: list[str]) -> None:
        """Start with no text.

        Args:
            codec: of the model.
            stops: strings that end the output; empty ones are ignored.
        """
        self.stopped = False
        self._codec = codec
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._any = False
        self._decoder = None
        if codec.tokenizer is not None:
            from tokenizers.decoders import DecodeStream

            self._decoder = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """Take a token and give the text that is safe to show; nothing after a stop string."""
        if self.stopped:
            return ""
        self._held += self._decode(token)
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """Give the text held back in case a stop string followed."""
        shown, self._held = self._held, ""
        return shown

    def _decode(self, token: int) -> str:
        """Give the text a token adds; empty while a character is incomplete."""
        if self._decoder is not None and self._codec.tokenizer is not None:
            return self._decoder.step(self._codec.tokenizer, token) or ""
        space, self._any = " " if self._any else "", True
        return f"{space}{token}"

    def _overlap(self, stop: str) -> int:
        """Count the trailing characters that may be the beginning of a stop string."""
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:size]):
                return size
        return 0
