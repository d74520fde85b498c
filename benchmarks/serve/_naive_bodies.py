"""What clients may send to the naive front, and the shape of its errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from steelyard.errors import ConfigError

__all__ = ["CompletionBody", "error_body"]


class CompletionBody(BaseModel):
    """Body of `/v1/completions`; fields not named here are ignored."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(default=16, ge=1)
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    model: str = ""
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: str | list[str] | None = Field(default=None, max_length=64)
    stream: bool = False
    n: int = 1
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        names = ("frequency_penalty", "presence_penalty", "logit_bias", "echo", "suffix")
        found = [name for name in names if getattr(self, name)]
        found += ["n"] if self.n != 1 else []
        found += ["logprobs"] if self.logprobs is not None else []
        return [*found, *(["best_of"] if self.best_of not in (None, 1) else [])]

    def refuse_unsupported(self) -> None:
        """Refuse what would silently change the answer.

        Raises:
            ConfigError: names the fields.
        """
        names = self.unsupported()
        if names:
            raise ConfigError(f"not supported: {', '.join(names)}", hint="leave these fields out")

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry per prompt, text or token ids.

        Raises:
            ConfigError: there is none, or more than 256.
        """
        prompt = self.prompt
        listed = (
            [prompt]
            if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
            else prompt
        )
        if not 1 <= len(listed) <= 256:
            raise ConfigError(
                f"{len(listed)} prompts, but 1 to 256 are allowed", hint="split the request"
            )
        return listed  # pyright: ignore[reportReturnType]


def error_body(
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
