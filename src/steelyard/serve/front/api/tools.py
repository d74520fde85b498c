"""Functions a client offers to a model: how they are described, called and kept to their schemas.

A call is written in the form of the Hermes models, which Qwen and others share:
`<tool_call>`, a line of JSON with "name" and "arguments", `</tool_call>`. A grammar keeps an output
to that form and the arguments to the function's schema, so that every call that ends is valid,
whatever the model has learned.
"""

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "BEGIN",
    "END",
    "ForcedTool",
    "Function",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "call_text",
    "instructions",
    "tool_grammar",
]

BEGIN, END = "<tool_call>", "</tool_call>"
HEAD, MIDDLE = '\n{"name": ', ', "arguments": '
"""What stands between the marks and a call's name and arguments."""

_MOST_CALLS = 8
_PLAIN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Blanks as models have seen them; one that has not learned JSON would else write them for ever."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(msgspec.Struct):
    """A function that the model may call.

    Attributes:
        name: letters, digits, "_", "." and "-", at most 64.
        description: what it does, for the model.
        parameters: JSON schema of its arguments, an object; no arguments when absent.
        strict: ignored; arguments always follow the schema.
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that are no object.

        Raises:
            ValueError: the decoder adds where it is.
        """
        if (self.parameters or {}).get("type", "object") != "object":
            raise ValueError("parameters must be the schema of an object")


class Tool(msgspec.Struct):
    """A tool of a chat.

    Attributes:
        type: functions are the only kind.
        function: the function.
    """

    type: Literal["function"]
    function: Function


class _Named(msgspec.Struct):
    """A function by its name."""

    name: Name


class ForcedTool(msgspec.Struct):
    """The one function that must be called.

    Attributes:
        type: functions are the only kind.
        function: its name.
    """

    type: Literal["function"]
    function: _Named


ToolChoice = Literal["none", "auto", "required"] | ForcedTool


class _Called(msgspec.Struct):
    """A function with the arguments it was called with, as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct):
    """A call the model made in an earlier turn.

    Attributes:
        function: name and arguments.
        id: what the call's result refers to.
        type: functions are the only kind.
    """

    function: _Called
    id: str = ""
    type: Literal["function"] = "function"

    def plain(self) -> dict[str, Any]:
        """Return the call as chat templates take it, its arguments parsed where they are JSON."""
        try:
            arguments: Any = json.loads(self.function.arguments)
        except ValueError:
            arguments = self.function.arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


def call_text(call: ToolCall) -> str:
    """Return a call as the model writes it."""
    name = json.dumps(call.function.name)
    return f"{BEGIN}{HEAD}{name}{MIDDLE}{call.function.arguments}}}\n{END}"


def instructions(tools: list[Tool]) -> str:
    """Return words that tell a model of its functions, for a chat template that does not.

    Args:
        tools: functions on offer.

    Returns:
        A part of the system's message, short: small models have small contexts.
    """
    lines = [json.dumps(plain_tool(tool)["function"], ensure_ascii=False) for tool in tools]
    form = f'{BEGIN}{HEAD}"NAME"{MIDDLE}{{...}}}}\n{END}'
    return "\n".join(["Functions you may call:", *lines, "To call one, write:", form])


def plain_tool(tool: Tool) -> dict[str, Any]:
    """Return a tool as chat templates take it."""
    function = tool.function
    fields = {"name": function.name, "description": function.description}
    known = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": {**known, "parameters": function.parameters or {}}}


def tool_grammar(
    tools: list[Tool], choice: ToolChoice, *, parallel: bool, answer: dict[str, Any] | None
) -> str:
    """Return the grammar of an output that may, or must, call functions.

    Args:
        tools: functions on offer.
        choice: "auto" leaves the model free to answer in text; otherwise it must call.
        parallel: whether up to eight calls may follow each other, instead of one.
        answer: schema of an answer that is no call; any text when None.

    Returns:
        The grammar as `running.grammar` spells it.
    """
    rules = [f"call: {json.dumps(HEAD)} ({_options(len(tools))}) {json.dumps('}' + chr(10) + END)}"]
    for place, tool in enumerate(tools):
        given = tool.function.parameters
        schema = {"additionalProperties": False} if given is None else given
        # Rules of their own, not one schema of all: references in a schema begin at its root.
        schema = {"type": "object", **schema, "x-guidance": _PLAIN}
        begin = json.dumps(json.dumps(tool.function.name) + MIDDLE)
        rules.append(f"call_{place}: {begin} %json {json.dumps(schema)}")
    more = f" ({json.dumps(chr(10) + BEGIN)} call){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    if choice != "auto":
        start = f"start: {json.dumps(BEGIN)} call{more}"
    elif answer is not None:
        start = f"start: answer | {json.dumps(BEGIN)} call{more}"
        rules.append(f"answer: %json {json.dumps(answer)}")
    else:
        start = f"start: TEXT | lead call{more}"
        # Lazy: the mark ends it as soon as it is there, and the call begins.
        rules += [f"lead[lazy]: TEXT {json.dumps(BEGIN)}", r"TEXT: /(.|\n)*/"]
    return "\n".join(["lark:%llguidance {}", start, *rules])


def _options(count: int) -> str:
    """Return the alternatives of a call."""
    return " | ".join(f"call_{place}" for place in range(count))
