"""The openai client library, unmodified, against a server of its own."""

import json
import subprocess
import sys

import pytest

openai = pytest.importorskip("openai")


def test_completions_whole_and_streamed(client):
    body = {"model": "tiny", "prompt": "once upon", "max_tokens": 12, "temperature": 0.7, "seed": 4}
    whole = client.completions.create(**body)
    assert whole.usage.completion_tokens == 12
    pieces = list(
        client.completions.create(**body, stream=True, stream_options={"include_usage": True})
    )
    assert (
        "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    )
    assert pieces[-1].usage.completion_tokens == 12
    assert [item.id for item in client.models.list()] == ["tiny"]


def test_chat_with_choices_stops_and_log_probabilities(client):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 16,
        "seed": 1,
    }
    whole = client.chat.completions.create(**body, n=2, logprobs=True, top_logprobs=3)
    assert [item.index for item in whole.choices] == [0, 1]
    for choice in whole.choices:
        raw = b"".join(bytes(item.bytes) for item in choice.logprobs.content).decode(
            errors="replace"
        )
        assert raw.rstrip("�") == choice.message.content.rstrip(
            "�"
        )  # an unfinished last character is not shown
        assert all(len(item.top_logprobs) == 3 for item in choice.logprobs.content)
    text = whole.choices[0].message.content
    stopped = client.chat.completions.create(**body, stop=[text[5:7]])
    assert stopped.choices[0].message.content == text[: text.index(text[5:7])]
    assert stopped.choices[0].finish_reason == "stop"
    texts = ["", ""]
    for piece in client.chat.completions.create(**body, n=2, stream=True):
        texts[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert texts == [item.message.content for item in whole.choices]


def test_json_mode_follows_the_schema(client):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}, "size": {"enum": ["s", "m", "l"]}},
        "required": ["good", "size"],
        "additionalProperties": False,
    }
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "is it?"}],
        "max_tokens": 120,
        "seed": 2,
    }
    choice = client.chat.completions.create(**body, response_format=form).choices[0]
    assert choice.finish_reason == "stop"
    answer = json.loads(choice.message.content)
    assert set(answer) == {"good", "size"} and answer["size"] in "sml"
    free = client.chat.completions.create(**body, response_format={"type": "json_object"}).choices[
        0
    ]
    assert free.message.content.lstrip().startswith("{")
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**body, response_format=wrong)


def test_embeddings_are_unit_vectors(client):
    rows = client.embeddings.create(
        model="tiny", input=["one", "two"]
    ).data  # the library asks for base64
    assert [len(item.embedding) for item in rows] == [32, 32]
    assert sum(value * value for value in rows[0].embedding) == pytest.approx(1)
    assert rows[0].embedding != rows[1].embedding
    short = (
        client.embeddings.create(model="tiny", input="one", dimensions=4, encoding_format="float")
        .data[0]
        .embedding
    )
    assert sum(value * value for value in short) == pytest.approx(1)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="tiny", input="x" * 5000)


def test_errors_are_the_librarys_own(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], tools=[{"type": "function"}]
        )


@pytest.mark.peers
def test_no_request_derived_from_the_schema_makes_the_server_fail(chat_server):
    pytest.importorskip("schemathesis")
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{chat_server.url}/openapi.json",
        "--checks",
        "not_a_server_error",
    ]
    run = subprocess.run(
        [*command, "--max-examples", "60", "--request-timeout", "60"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
