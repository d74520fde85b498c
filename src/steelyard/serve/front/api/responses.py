"""Bodies of `/v1/responses`, and the chat each of them asks for."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from steelyard.serve.front.api.bodies import (
    ChatBody,
    JsonSchema,
    Message,
    Natural,
    ResponseFormat,
    User,
)
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.tools import ForcedTool, Function, Tool, ToolCall

__all__ = ["ResponseBody", "TextFormat", "TextOptions"]

_TEXTS = ("input_text", "output_text", "text")
_HIDDEN = "reasoning.encrypted_content"
"""Clients ask for it beside an answer; models here have no hidden thoughts, so nothing is lost."""


class TextFormat(msgspec.Struct):
    """Form of the output.

    Attributes:
        type: free text, any JSON object, or JSON that follows a schema.
        name: ignored.
        schema: needed with "json_schema".
        strict: ignored; the output always follows the schema.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    """What the text is like.

    Attributes:
        format: form of the output.
    """

    format: TextFormat = msgspec.field(default_factory=TextFormat)


class ResponseBody(msgspec.Struct, kw_only=True):
    """Body of `/v1/responses`; fields not named are ignored, None means absent.

    Nothing is kept between requests: the whole conversation is sent each time.

    Attributes:
        input: text, or items: messages, function calls and their outputs, oldest first.
        model: name from `/v1/models`; the served one when empty.
        instructions: the system's words, before the input.
        max_output_tokens: most output tokens; what the model length leaves when absent.
        temperature: 0 takes the likeliest token.
        top_p: probability that the kept tokens reach.
        seed: seed of the draws; made up when absent.
        stream: answer by server-sent events.
        text: form of the output.
        tools: functions the model may call; tools of other types are not supported.
        tool_choice: "auto", "required", "none", or the one function that must be called.
        parallel_tool_calls: whether up to eight may be called at once; one when absent.
        metadata: returned as it is.
        user: whom of the key's users the request is for.
        truncation: "disabled" is the only way; leave older turns out yourself.
        store: not supported but for false; nothing is kept.
        previous_response_id: not supported; send the earlier turns as input.
        conversation: not supported; send the earlier turns as input.
        background: not supported but for false.
        prompt: not supported; send the text itself.
        include: not supported.
        top_logprobs: not supported; `/v1/chat/completions` has log probabilities.
    """

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Natural | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    user: User | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    include: list[str] | None = None
    top_logprobs: int | None = None

    def chat(self) -> ChatBody:
        """Return the chat that gives the answer.

        Returns:
            A body as `/v1/chat/completions` takes it.

        Raises:
            ApiError: a field asks for what this server does not do, or an item cannot be read.
        """
        self._refuse_unsupported()
        head = [Message("system", self.instructions)] if self.instructions else []
        turns = (
            [Message("user", self.input)]
            if isinstance(self.input, str)
            else [_message(item, f"input[{place}]") for place, item in enumerate(self.input)]
        )
        form = (self.text or TextOptions()).format
        return ChatBody(
            messages=[*head, *_joined(turns)],
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stream=self.stream,
            user=self.user,
            tools=[_tool(item, f"tools[{at}]") for at, item in enumerate(self.tools or ())] or None,
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=ResponseFormat(form.type, JsonSchema(form.name, form.schema)),
        )

    def _refuse_unsupported(self) -> None:
        """Refuse fields that would change the answer but cannot be honored."""
        resend = "nothing is kept between requests; send the earlier turns as input"
        asked = {
            "previous_response_id": (self.previous_response_id, resend),
            "conversation": (self.conversation, resend),
            "store": (self.store, "nothing is kept between requests; send false"),
            "background": (self.background, "the answer comes at once; send false"),
            "truncation": (self.truncation == "auto", "leave older turns out of the input"),
            "prompt": (self.prompt, "there are no stored prompts; send the text as input"),
            "include": (set(self.include or ()) - {_HIDDEN}, "leave it out"),
            "top_logprobs": (self.top_logprobs, "/v1/chat/completions has log probabilities"),
        }
        for name, (given, words) in asked.items():
            if given:
                raise ApiError(400, f"{name} is not supported: {words}", param=name)


def _message(item: dict[str, Any], where: str) -> Message:
    """Return an input item as a turn of a chat."""
    kind = item.get("type", "message")
    try:
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            plain = {"function": function, "id": item.get("call_id", "")}
            return Message("assistant", None, [msgspec.convert(plain, ToolCall)])
        if kind == "function_call_output":
            content = _text(item["output"], f"{where}.output")
            return Message("tool", content, None, msgspec.convert(item["call_id"], str))
        if kind == "message":
            content = _text(item["content"], f"{where}.content")
            return msgspec.convert({"role": item.get("role"), "content": content}, Message)
    except KeyError as error:
        raise ApiError(400, f"{where} has no {error.args[0]!r}", param=where) from error
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error
    words = "messages, function calls and their outputs are supported"
    raise ApiError(400, f"{where} is of type {kind!r}; {words}", param=where)


def _text(content: Any, where: str) -> str:
    """Return the text of an item's content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where} must be text or a list of texts", param=where)
    for place, part in enumerate(content):
        here = f"{where}[{place}]"
        if not isinstance(part, dict) or part.get("type") not in _TEXTS:
            kind = part.get("type") if isinstance(part, dict) else part
            text = f"{here} is of type {kind!r}, but the model reads only text"
            raise ApiError(400, text, param=here)
        if not isinstance(part.get("text"), str):
            raise ApiError(400, f"{here} has no text", param=here)
    return "".join(part["text"] for part in content)


def _joined(turns: list[Message]) -> list[Message]:
    """Put calls into the assistant's turn they belong to, as chat templates expect them."""
    joined: list[Message] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if turn.tool_calls and last is not None and last.role == "assistant":
            last.tool_calls = [*(last.tool_calls or ()), *turn.tool_calls]
        else:
            joined.append(turn)
    return joined


def _tool(item: dict[str, Any], where: str) -> Tool:
    """Return a tool, whose fields stand beside its type here."""
    kind = item.get("type")
    if kind != "function":
        text = f"{where} is of type {kind!r}, but only functions are supported"
        raise ApiError(400, text, param=f"{where}.type")
    try:
        return Tool("function", msgspec.convert(item, Function))
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error


def _choice(given: str | dict[str, Any] | None) -> Any:
    """Return a tool choice as chats have it."""
    if not isinstance(given, dict):
        return given
    if given.get("type") != "function":
        text = f"tool_choice of type {given.get('type')!r} is not supported; name a function"
        raise ApiError(400, text, param="tool_choice")
    try:
        plain = {"type": "function", "function": {"name": given.get("name")}}
        return msgspec.convert(plain, ForcedTool)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"tool_choice: {error}", param="tool_choice") from error
