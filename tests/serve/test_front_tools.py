"""Functions that a model calls: always valid, whole and streamed, through the openai library."""

import asyncio
import json

import pytest

from steelyard.serve.front.api.bodies import ChatBody
from steelyard.serve.front.api.decode import decode_body
from steelyard.serve.front.api.splitter import CallSplitter
from steelyard.serve.front.api.tools import Function, Tool, tool_grammar
from steelyard.serve.front.gateway.inputs import encode_chat
from steelyard.serve.front.text import TextCodec
from steelyard.serve.running.grammar import Grammars

openai = pytest.importorskip("openai")
pytest.importorskip("llguidance")

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bonn", "Köln"]}, "unit": {"$ref": "#/$defs/unit"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
        "$defs": {"unit": {"enum": ["C", "F"]}},
    },
}
CLOCK = {"name": "clock.now"}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": CLOCK}]
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "how warm is it?"}],
    "tools": TOOLS,
    "max_tokens": 200,
}


def check_call(call):
    arguments = json.loads(call.function.arguments)
    assert call.id.startswith("call_")
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Bonn", "Köln") and arguments["unit"] in ("C", "F")
    else:
        assert call.function.name == "clock.now" and arguments == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_valid_whatever_the_model_has_learned(client, seed):
    choice = client.chat.completions.create(**BODY, tool_choice="required", seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    check_call(call)


def test_a_named_function_is_the_one_called_and_streams_as_it_comes(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = BODY | {"tool_choice": named, "seed": 5}
    whole = client.chat.completions.create(**body).choices[0].message.tool_calls[0].function
    assert whole.name == "get_weather"
    name, arguments, reasons = "", "", []
    for chunk in client.chat.completions.create(**body, stream=True):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, arguments) == (whole.name, whole.arguments)
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}


def test_several_calls_come_where_they_are_allowed(client):
    counts = set()
    for seed in range(3):
        body = BODY | {"seed": seed, "tool_choice": "required", "max_tokens": 900}
        choice = client.chat.completions.create(**body, parallel_tool_calls=True).choices[0]
        for call in choice.message.tool_calls:
            check_call(call)
        counts.add(len(choice.message.tool_calls))
    assert max(counts) > 1 and max(counts) <= 8


def test_a_model_that_may_call_can_answer_in_text_or_in_a_schema(client):
    free = client.chat.completions.create(**BODY | {"max_tokens": 30}, seed=1).choices[0]
    assert free.message.content and free.message.tool_calls is None
    none = client.chat.completions.create(
        **BODY | {"max_tokens": 30}, seed=1, tool_choice="none"
    ).choices[0]
    assert none.message.content and none.finish_reason == "length"
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"enum": ["warm", "cold"]}},
    }
    either = client.chat.completions.create(**BODY, seed=1, response_format=form).choices[0]
    assert either.message.tool_calls or json.loads(either.message.content) in ("warm", "cold")


def test_results_of_calls_go_back_to_the_model(client):
    call = client.chat.completions.create(**BODY, tool_choice="required").choices[0].message
    answer = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "21 C"}
    messages = [*BODY["messages"], call.model_dump(exclude_none=True), answer]
    reply = client.chat.completions.create(
        **BODY | {"messages": messages, "tool_choice": "none", "max_tokens": 8}
    )
    first = client.chat.completions.create(**BODY | {"tool_choice": "none", "max_tokens": 8})
    assert reply.usage.prompt_tokens > first.usage.prompt_tokens + 60


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}
                ]
            },
            "tools[0].function",
        ),
        ({"functions": [CLOCK]}, "functions"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**BODY | fields)
    assert caught.value.param == param


def test_a_schema_that_cannot_be_followed_is_refused(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://x/y"}}}
    with pytest.raises(openai.BadRequestError, match="the grammar cannot be followed") as caught:
        client.chat.completions.create(**BODY | {"tools": [tool], "tool_choice": "required"})
    assert caught.value.param == "tools"


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "choice", "parallel", "fits"),
    [
        ("It is < warm.", "auto", False, True),
        (CALL, "auto", False, True),
        (f"Let me see.\n{CALL}", "auto", False, True),
        (f"{CALL}\n{CALL}", "auto", True, True),
        (f"{CALL}\n{CALL}", "auto", False, False),
        (CALL.replace("1", '"x"'), "auto", False, False),
        (CALL.replace('"f"', '"g"'), "auto", False, False),
        ("It is warm.", "required", False, False),
        (CALL, "required", False, True),
    ],
)
def test_what_the_grammar_of_tools_lets_through(chat_folder, text, choice, parallel, fits):
    codec = TextCodec.load(chat_folder)
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [Tool("function", Function("f", parameters=schema))]
    grammar = tool_grammar(tools, choice, parallel=parallel, answer=None)
    matcher = Grammars(codec.tokenizer, 257, codec.end_tokens)._matcher(grammar)
    tokens = codec.encode(text)
    taken = matcher.try_consume_tokens(tokens)
    assert (taken == len(tokens) and matcher.is_accepting()) is fits


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_an_output_is_cut_into_text_and_calls_wherever_it_is_torn(size):
    output = f"Well <tool, then:{CALL}\n{CALL}"
    splitter, pieces = CallSplitter(), []
    for start in range(0, len(output), size):
        pieces += splitter.push(output[start : start + size])
    pieces += splitter.finish()
    joined = {}
    for piece in pieces:
        if piece.kind in ("text", "arguments"):
            key = (piece.kind, piece.call)
            joined[key] = joined.get(key, "") + piece.text
    assert joined == {
        ("text", 0): "Well <tool, then:",
        ("arguments", 0): '{"a": 1}',
        ("arguments", 1): '{"a": 1}',
    }
    kinds = [piece.kind for piece in pieces if piece.kind in ("begin", "end")]
    assert kinds == ["begin", "end", "begin", "end"]


def test_a_call_cut_short_keeps_the_arguments_it_has():
    splitter = CallSplitter()
    pieces = splitter.push(CALL[: CALL.index("1")] + "}") + splitter.finish()
    assert [piece.kind for piece in pieces] == ["begin", "arguments", "arguments", "end"]
    assert "".join(item.text for item in pieces if item.kind == "arguments") == '{"a": }'
    assert CallSplitter().push("<tool_call>\n{") == []


HERMES = (
    "{% if tools %}tools:{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments.a }}</tool_call>"
    "{% endfor %}\n{% endfor %}"
)
CHAT = {
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "<7>"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "<b>"}}],
}


@pytest.mark.parametrize("template", [HERMES, "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_a_template_that_knows_tools_describes_them_itself(chat_folder, template):
    chat = json.loads(json.dumps(CHAT))
    chat["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"a": 5}'
    codec = TextCodec.load(chat_folder)
    codec.chat_template = template
    body = decode_body(json.dumps(chat).encode(), ChatBody)
    text = codec.decode(asyncio.run(encode_chat(codec, body)))
    if template is HERMES:
        assert '{"type": "function", "function": {"name": "f", "description": "<b>"' in text
        assert "<tool_call>5</tool_call>" in text and "tool:<7>" in text
        assert "Functions you may call" not in text
    else:
        assert text.startswith("be kind\n\nFunctions you may call:\n{")
        assert '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>' in text
        assert text.endswith("<tool_response>\n<7>\n</tool_response>")
