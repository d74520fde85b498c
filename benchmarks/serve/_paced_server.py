"""A server of known delays: each first token after a delay of its own, the others at a pace.

Usage: python -m benchmarks.serve._paced_server. Delays depend on the prompt only, so that every
client sees the same ones.
"""

import asyncio
import json
import zlib

FIRST_S, SPREAD_S, GAP_S = 0.2, 0.3, 0.02


def delay_s(prompt: str) -> float:
    """Return the time to the first token of a prompt."""
    return FIRST_S + SPREAD_S * (zlib.crc32(prompt.encode()) % 1000) / 1000


async def _answer(writer: asyncio.StreamWriter, body: dict[str, object]) -> None:
    """Stream one completion."""
    loop = asyncio.get_running_loop()
    start_s = loop.time() + delay_s(str(body["prompt"]))
    count = int(str(body["max_tokens"]))
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for place in range(count):
        await asyncio.sleep(max(start_s + GAP_S * place - loop.time(), 0.0))
        ending = "length" if place == count - 1 else None
        _chunk(writer, {"choices": [{"index": 0, "text": f"w{place} ", "finish_reason": ending}]})
    _chunk(
        writer,
        {
            "choices": [],
            "usage": {
                "prompt_tokens": len(str(body["prompt"]).split()),
                "completion_tokens": count,
            },
        },
    )
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()


def _chunk(writer: asyncio.StreamWriter, fields: dict[str, object]) -> None:
    """Write one event as one piece of the body."""
    data = b"data: " + json.dumps(fields).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
            size = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
            body = await reader.readexactly(size)
            if head.startswith(b"POST"):
                await _answer(writer, json.loads(body))
            else:
                listed = b'{"object": "list", "data": [{"id": "paced", "object": "model"}]}'
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                    b"%d\r\n\r\n%s" % (len(listed), listed)
                )
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def _main() -> None:
    """Listen on a free port until ended."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(f"serving on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
