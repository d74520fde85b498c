"""The bodies of the OpenAI-compatible API: what comes in, checked; what goes out."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from steelyard.errors import ConfigError

__all__ = ["ChatBody", "CompletionBody", "Message", "error_body"]


class _Body(BaseModel):
    """What both kinds of request share; fields not named here are ignored."""

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
        names = [name for name in ("frequency_penalty", "presence_penalty", "logit_bias") if getattr(self, name)]
        return [*names, *(["n"] if self.n != 1 else [])]

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


class CompletionBody(_Body):
    """Body of `/v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(default=16, ge=1)
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        extra = [name for name in ("echo", "suffix") if getattr(self, name)]
        extra += ["logprobs"] if self.logprobs is not None else []
        return [*super().unsupported(), *extra, *(["best_of"] if self.best_of not in (None, 1) else [])]

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry per prompt, text or token ids.

        Raises:
            ConfigError: there is none, or more than 256.
        """
        prompt = self.prompt
        listed = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
        if not 1 <= len(listed) <= 256:
            raise ConfigError(f"{len(listed)} prompts, but 1 to 256 are allowed", hint="split the request")
        return listed  # pyright: ignore[reportReturnType]


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class ChatBody(_Body):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        extra = [name for name in ("logprobs", "tools") if getattr(self, name)]
        form = (self.response_format or {}).get("type", "text")
        return [*super().unsupported(), *extra, *(["response_format"] if form != "text" else [])]


def error_body(message: str, *, kind: str = "invalid_request_error", code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Give an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
