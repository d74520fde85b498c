"""What clients may send: bodies of the OpenAI-compatible API."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.tools import Tool, ToolCall, ToolChoice, call_text

__all__ = [
    "ChatBody",
    "CompletionBody",
    "EmbeddingBody",
    "GenerationBody",
    "JsonSchema",
    "Message",
    "Natural",
    "ResponseFormat",
    "User",
    "split_prompts",
]

_MAX_PROMPTS = 256
_MAX_STOPS = 64
_MAX_SEQUENCES = 32
_MAX_TOOLS = 128

Natural = Annotated[int, Meta(ge=1, le=2**31)]
Count = Annotated[int, Meta(ge=1, le=_MAX_SEQUENCES)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
# Checked against the vocabulary later; the bound keeps larger numbers out of the frames.
Token = Annotated[int, Meta(ge=0, le=2**31)]
User = Annotated[str, Meta(max_length=256)]
Stops = str | Annotated[list[str], Meta(max_length=_MAX_STOPS)] | None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=False):
    """What a stream carries beside its text.

    Attributes:
        include_usage: whether a last event counts the tokens and has the stages' times.
    """

    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    """A named JSON schema.

    Attributes:
        name: ignored.
        schema: schema that the output follows.
        strict: ignored; the output always follows the schema.
    """

    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """Form of the output.

    Attributes:
        type: free text, any JSON object, or JSON that follows a schema.
        json_schema: needed with "json_schema".
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both kinds of request share; fields not named are ignored, None means absent.

    Attributes:
        model: name from `/v1/models`; the served one when empty.
        temperature: 0 takes the likeliest token.
        top_p: probability that the kept tokens reach.
        top_k: tokens kept, 0 for all.
        min_p: share of the likeliest token's probability below which tokens are dropped.
        seed: seed of the draws; made up when absent.
        stop: strings that end the output before them.
        stop_token_ids: tokens that end the output.
        stream: answer by server-sent events.
        stream_options: what the events carry.
        n: choices per prompt.
        best_of: sequences drawn per prompt, of which the `n` likeliest are returned.
        beam_width: beams of a beam search, 0 for none.
        length_penalty: exponent of the length in the score of a beam.
        frequency_penalty: taken off a token's logit per occurrence in the output.
        presence_penalty: taken off the logits of tokens in the output.
        repetition_penalty: factor on the logits of tokens in prompt or output.
        logit_bias: addend by token id.
        min_tokens: fewest output tokens before an end token may come.
        ignore_eos: run to the limit.
        priority: smaller comes first under the priority policy.
        user: whom of the key's users the request is for; fair policies share the key's part among
            them.
        response_format: form of the output.
    """

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[Token], Meta(max_length=_MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    best_of: Count | None = None
    beam_width: Annotated[int, Meta(ge=0, le=_MAX_SEQUENCES)] | None = None
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    user: User | None = None
    response_format: ResponseFormat | None = None

    def unsupported(self) -> tuple[str, ...]:
        """Name fields that would change the answer but cannot be honored."""
        return ()

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def output_limit(self) -> int | None:
        """Most output tokens, or None for what the model length leaves."""
        return None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token, or None for no report."""
        return None


class CompletionBody(GenerationBody, kw_only=True):
    """Body of `/v1/completions`.

    Attributes:
        prompt: one or many, as text or token ids.
        max_tokens: most output tokens.
        echo: begin the answer with the prompt.
        logprobs: alternatives to report per token.
        suffix: not supported.
    """

    prompt: str | list[str | int | list[int]]
    max_tokens: Natural | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None

    def unsupported(self) -> tuple[str, ...]:
        """Name fields that would change the answer but cannot be honored."""
        both = self.echo and self.logprobs is not None
        return (*(("suffix",) if self.suffix else ()), *(("echo with logprobs",) if both else ()))

    @property
    def output_limit(self) -> int | None:
        """Most output tokens; 16 as in OpenAI's interface."""
        return self.max_tokens or 16

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, text or token ids.

        Raises:
            ApiError: there is none, there are too many, or kinds are mixed.
        """
        return split_prompts(self.prompt, "prompt")


class Message(msgspec.Struct):
    """One turn of a conversation.

    Attributes:
        role: who speaks; "tool" tells the result of a call.
        content: text, or parts of which each is text.
        tool_calls: calls the assistant made in this turn.
        tool_call_id: call whose result this is.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=_MAX_STOPS)] | None = None
    tool_call_id: str | None = None

    def plain(self, *, knows_tools: bool = False) -> dict[str, Any]:
        """Return role and content as text.

        Args:
            knows_tools: whether the chat template writes calls and their results by itself.

        Returns:
            Both as strings; calls and results in the content, or beside it for such a template.

        Raises:
            ApiError: a part is not text.
        """
        parts = (
            self.content
            if isinstance(self.content, list)
            else [{"type": "text", "text": self.content or ""}]
        )
        if any(
            part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts
        ):
            raise ApiError(400, "only parts of type 'text' are supported", param="messages")
        text = "".join(part["text"] for part in parts)
        if knows_tools:
            calls = [item.plain() for item in self.tool_calls or ()]
            return {"role": self.role, "content": text} | ({"tool_calls": calls} if calls else {})
        if self.role == "tool":
            # Templates without tools know no such role: the result comes back as the user's turn.
            return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
        written = [text] * bool(text) + [call_text(item) for item in self.tool_calls or ()]
        return {"role": self.role, "content": "\n".join(written)}


class ChatBody(GenerationBody, kw_only=True):
    """Body of `/v1/chat/completions`.

    Attributes:
        messages: turns, oldest first.
        max_tokens: most output tokens; what the model length leaves when absent.
        max_completion_tokens: newer name of the same.
        logprobs: whether to report log probabilities.
        top_logprobs: alternatives per token.
        tools: functions the model may call.
        tool_choice: whether it may ("auto"), must ("required") or must not ("none") call one, or
            the one it must call.
        parallel_tool_calls: whether it may call up to eight at once; one when absent.
        functions: not supported; use `tools`.
        function_call: not supported; use `tool_choice`.
    """

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Natural | None = None
    max_completion_tokens: Natural | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=_MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None

    def unsupported(self) -> tuple[str, ...]:
        """Name fields that would change the answer but cannot be honored."""
        return tuple(name for name in ("functions", "function_call") if getattr(self, name))

    @property
    def offered(self) -> list[Tool]:
        """Functions the model may call in this turn.

        Raises:
            ApiError: the choice names none of them, or there are none to choose from.
        """
        tools, choice = self.tools or [], self.tool_choice or "auto"
        if isinstance(choice, str):
            if choice == "required" and not tools:
                raise ApiError(400, "tool_choice needs tools", param="tool_choice")
            return [] if choice == "none" else tools
        name = choice.function.name
        found = [tool for tool in tools if tool.function.name == name]
        if not found:
            known = ", ".join(tool.function.name for tool in tools) or "none"
            text = f"tool_choice names {name!r}, but tools has {known}"
            raise ApiError(400, text, param="tool_choice")
        return found[:1]

    @property
    def output_limit(self) -> int | None:
        """Most output tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`.

    Attributes:
        input: one or many, as text or token ids.
        model: name from `/v1/models`.
        encoding_format: numbers as JSON, or float32 little-endian in base64.
        dimensions: leading components kept, and the vector made unit length again; all when absent.
        user: accepted as OpenAI's is, and not used.
    """

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Natural | None = None
    user: User | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, text or token ids.

        Raises:
            ApiError: there is none, there are too many, or kinds are mixed.
        """
        return split_prompts(self.input, "input")


def split_prompts(value: str | list[str | int | list[int]], field: str) -> list[str | list[int]]:
    """Return one entry per prompt.

    Args:
        value: a text, token ids, texts or lists of token ids.
        field: name of the field, for the error.

    Returns:
        At least one prompt.

    Raises:
        ApiError: there is none, there are too many, or kinds are mixed.
    """
    listed: Any = (
        [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
    )
    if not 1 <= len(listed) <= _MAX_PROMPTS:
        raise ApiError(
            400,
            f"{field} has {len(listed)} prompts, but 1 to {_MAX_PROMPTS} are allowed; split the "
            f"request",
            param=field,
        )
    texts = sum(isinstance(item, str) for item in listed)
    numbers = all(
        isinstance(token, int) for item in listed if isinstance(item, list) for token in item
    )
    if (
        texts not in (0, len(listed))
        or not numbers
        or (not texts and not all(isinstance(item, list) for item in listed))
    ):
        raise ApiError(
            400,
            f"{field} must be a text, token ids, a list of texts or a list of lists of token ids",
            param=field,
        )
    if any(not item for item in listed):
        raise ApiError(400, f"{field} is empty; give at least one token", param=field)
    return listed
