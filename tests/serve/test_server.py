import asyncio
import json
import time

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from steelyard.errors import ConfigError, DataError
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.front.server import create_app
from steelyard.serve.front.text import TextCodec, TextStream


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:90]
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def serve(model, work, *, tokenizer=True, **options):
    """Run `work(client, llm)` against a server in this process."""

    async def run():
        limits = SchedulerConfig(num_blocks=40, block_size=8, token_budget=64, max_num_seqs=8, max_model_len=120)
        llm = LLM(model, limits)
        app = create_app(llm, TextCodec(byte_tokenizer() if tokenizer else None), name="tiny", **options)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await work(client, llm)
        assert llm.stats().blocks_in_use == 0

    asyncio.run(run())


def test_completions_equal_the_plain_forward(model, greedy):
    async def work(client, llm):
        prompts = [[1, 2, 3], [4, 5, 6, 7]]
        body = {"model": "tiny", "prompt": prompts, "max_tokens": 6, "temperature": 0}
        answer = (await client.post("/v1/completions", json=body)).json()
        texts = [item["text"] for item in sorted(answer["choices"], key=lambda item: item["index"])]
        assert texts == [" ".join(map(str, greedy(prompt, 6))) for prompt in prompts]
        assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 19}
        assert {item["finish_reason"] for item in answer["choices"]} == {"length"}

    serve(model, work, tokenizer=False)


def test_streams_give_the_same_text_as_whole_answers(model):
    async def work(client, llm):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0.8, "seed": 5}
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]

    serve(model, work)


def test_many_clients_share_the_engine(model, greedy):
    async def work(client, llm):
        async def one(index):
            body = {"prompt": [index, index + 1], "max_tokens": 8, "temperature": 0}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        texts = await asyncio.gather(*(one(index) for index in range(20)))
        assert texts == [" ".join(map(str, greedy([index, index + 1], 8))) for index in range(20)]
        page = (await client.get("/metrics")).text
        assert 'steelyard_requests_total{finish_reason="length"} 20.0' in page
        assert "steelyard_output_tokens_total 160.0" in page

    serve(model, work, tokenizer=False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": [1] * 200}, "exceed the model length 120"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 500}, "exceed the model length"),
        ({"prompt": []}, "prompts"),
        ({"prompt": [500]}, "token ids must be in"),
        ({"prompt": [1], "temperature": -1}, "temperature"),
        ({"prompt": [1], "top_p": 0}, "top_p"),
        ({"prompt": [1], "n": 3}, "not supported: n"),
        ({"prompt": [1], "logprobs": 2}, "not supported: logprobs"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({}, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_requests_get_400_in_the_shape_clients_know(model, body, message):
    async def work(client, llm):
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
        assert response.json()["error"]["type"] == "invalid_request_error"

    serve(model, work)


def test_malformed_oversized_and_unknown_requests_are_refused(model):
    async def work(client, llm):
        assert (await client.post("/v1/completions", content=b"{no json")).status_code == 400
        assert (await client.post("/v1/completions", content=b"x" * 2000)).json()["error"]["code"] == "body_too_large"
        assert (await client.post("/v1/completions", json={"prompt": "a", "model": "other"})).status_code == 404
        assert (await client.get("/nowhere")).json()["error"]["code"] == "not_found"

    serve(model, work, body_limit_bytes=1000)


def test_keys_are_asked_for_only_where_they_are_needed(model):
    async def work(client, llm):
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})).status_code == 401
        good = await client.get("/v1/models", headers={"Authorization": "Bearer secret"})
        assert [item["id"] for item in good.json()["data"]] == ["tiny"]
        assert (await client.get("/health")).json() == {"status": "ok"}

    serve(model, work, api_key="secret")


def test_a_closed_stream_aborts_its_request(model):
    async def work(client, llm):
        execute = llm.runner.execute

        def slow(plan):
            time.sleep(0.02)
            return execute(plan)

        llm.runner.execute = slow
        seen = []

        async def listen():
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/completions",
                "query_string": b"",
                "headers": [(b"content-type", b"application/json")],
            }
            body = json.dumps({"prompt": [1, 2], "max_tokens": 100, "stream": True}).encode()
            gone = asyncio.Event()
            inbox = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive():
                if inbox:
                    return inbox.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                seen.append(message)
                if len(seen) > 4:
                    gone.set()

            await client._transport.app(scope, receive, send)

        await listen()
        for _ in range(100):
            if not llm.scheduler.has_work:
                break
            await asyncio.sleep(0.02)
        assert not llm.scheduler.has_work
        assert llm.stats().steps < 60

    serve(model, work, tokenizer=False)


def test_a_failed_step_ends_requests_with_a_message(model):
    async def work(client, llm):
        def broken(plan):
            raise RuntimeError("out of order")

        llm.runner.execute = broken
        response = await client.post("/v1/completions", json={"prompt": [1]})
        assert response.status_code == 503
        assert "out of order" in response.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 503
        llm.abort("request-1")

    serve(model, work)


def test_stop_strings_end_the_text_before_them():
    codec = TextCodec()
    stream = TextStream(codec, ["3 4", "9"])
    shown = [stream.push(token) for token in (1, 3, 5, 3, 4, 7)]
    assert "".join(shown) == "1 3 5 "
    assert stream.stopped
    assert shown[1] == " "  # "3" may be the beginning of a stop string
    whole = TextStream(codec, ["3 4"])
    assert "".join([whole.push(3), whole.finish()]) == "3"


def test_stop_strings_end_requests(model, greedy):
    async def work(client, llm):
        expected = greedy([1, 2, 3], 12)
        stop = f" {expected[5]}"
        answer = (await client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 12, "temperature": 0, "stop": stop})).json()
        whole = " ".join(map(str, expected))
        assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
        assert answer["choices"][0]["finish_reason"] == "stop"

    serve(model, work, tokenizer=False)


def test_text_codec_reads_a_model_folder(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 3]}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"}
        )
    )
    codec = TextCodec.load(tmp_path)
    assert codec.end_tokens == (3, 7)
    assert codec.encode_chat([{"role": "user", "content": "ab"}]) == codec.encode("<user>ab!")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="not a tokenizer"):
        TextCodec.load(tmp_path)
    with pytest.raises(ConfigError, match="no tokenizer"):
        TextCodec().encode("words")
    assert SamplingParams().max_tokens == 16
