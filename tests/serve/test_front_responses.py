"""`/v1/responses`, whole and streamed, through the openai library."""

import json

import pytest

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.response_shape import ResponseShape
from steelyard.serve.front.api.responses import ResponseBody
from steelyard.serve.front.text import TextCodec

openai = pytest.importorskip("openai")

FUNCTION = {
    "type": "function",
    "name": "weigh",
    "parameters": {
        "type": "object",
        "properties": {"what": {"enum": ["tea", "coal"]}},
        "required": ["what"],
        "additionalProperties": False,
    },
}
BODY = {"model": "tiny", "input": "hello", "max_output_tokens": 12}


def ask(client, **fields):
    return client.responses.create(**BODY | {"extra_body": {"seed": 3}} | fields)


def test_an_answer_in_text_is_that_of_a_chat(client):
    answer = ask(client, instructions="be brief", metadata={"a": "b"})
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, seed=3)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.model == "tiny" and answer.metadata == {"a": "b"} and answer.id[:5] == "resp_"


def test_items_of_a_conversation_go_in(client):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "how heavy is tea?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weigh", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2 g"},
        {"type": "message", "role": "developer", "content": "answer"},
    ]
    answer = ask(client, input=items)
    assert answer.usage.input_tokens > len("how heavy is tea?2 ganswer")
    earlier = [*items, *(item.model_dump() for item in answer.output)]
    assert ask(client, input=earlier).usage.input_tokens > answer.usage.input_tokens


def test_a_stream_has_the_official_events_in_order(client):
    whole = ask(client)
    events = list(ask(client, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == events[-4].text == whole.output_text
    assert events[-1].response.usage.output_tokens == 12


def test_a_schema_is_followed(client):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "a", "schema": {"enum": ["tea", "coal"]}}
    answer = ask(client, text={"format": form})
    assert json.loads(answer.output_text) in ("tea", "coal") and answer.status == "completed"


def test_a_function_is_called_whole_and_streamed(client):
    pytest.importorskip("llguidance")
    named = {"type": "function", "name": "weigh"}
    fields = {"tools": [FUNCTION], "tool_choice": named, "max_output_tokens": 120}
    (call,) = ask(client, **fields).output
    assert (call.type, call.name, call.status) == ("function_call", "weigh", "completed")
    assert json.loads(call.arguments)["what"] in ("tea", "coal")
    events = list(ask(client, **fields, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[2] == "output_item.added" and "function_call_arguments.delta" in kinds
    ends = ["function_call_arguments.done", "output_item.done", "completed"]
    assert kinds[-3:] == ends
    assert events[-3].arguments == call.arguments


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0]"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": "x" * 5000}, "input"),
        ({"input": "x", "max_output_tokens": 5000}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ({"temperature": -1}, "temperature"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param, caught.value


def test_a_stream_that_fails_ends_with_an_error_and_a_failed_answer():
    shape = ResponseShape("resp_1", 0, "tiny", TextCodec(), ResponseBody(input="hello"))
    failing = shape.failing(ApiError(503, "the engine died", code="engine_restarted"))
    events = [part.split(b"\ndata: ") for part in failing.strip().split(b"\n\n")]
    assert [name for name, _ in events] == [b"event: error", b"event: response.failed"]
    told, ended = (json.loads(data) for _, data in events)
    assert (told["code"], told["message"]) == ("engine_restarted", "the engine died")
    assert ended["response"]["status"] == "failed"
    assert ended["response"]["error"]["message"] == "the engine died"
    assert [told["sequence_number"], ended["sequence_number"]] == [0, 1]
