"""Clients that take their time, on raw sockets."""

import asyncio
import contextlib
import json
import socket
import threading

import pytest
import uvicorn

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.exchange import Exchange
from steelyard.serve.front.gateway.protocol import timed

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


async def read_body(scope, receive, send):
    """Tell how long the body is; refuse one path before its body is read."""
    exchange = Exchange(scope, receive, send)
    try:
        if exchange.path == "/nowhere":
            raise ApiError(404, "there is nothing")
        body = await exchange.body(2**20)
        await exchange.send_json(200, b"%d" % len(body))
    except ApiError as error:
        await exchange.send_error(error)
    except ConnectionError:
        pass


@pytest.fixture(scope="module")
def address():
    """A server on a thread, whose clients have a fifth of a second for each part of a request."""
    config = uvicorn.Config(
        read_body, port=0, http=timed(0.2), lifespan="off", log_level="error", timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        listener.listen()  # who connects before the server is up waits for it
        yield listener.getsockname()


def dribble(address, *pieces, drop=b""):
    """Send pieces, then `drop` again and again, and return all that comes until the close."""
    with socket.create_connection(address, timeout=30) as client:
        for piece in pieces:
            client.sendall(piece)
        answer = b""
        client.settimeout(0.05)
        while True:
            try:
                data = client.recv(2**16)
            except TimeoutError:
                with contextlib.suppress(OSError):
                    client.sendall(drop)
                continue
            except ConnectionError:  # it was closed while a drop was on its way
                return answer
            if not data:
                return answer
            answer += data


def status_of(answer):
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize(
    ("pieces", "drop"),
    [
        ((POST, b"X-Slow: "), b"a"),
        ((b"P",), b""),
        ((POST + b"Content-Length: 1000\r\n\r\n", b"{"), b" "),
        ((POST + b"Content-Length: 1000\r\n\r\n",), b""),
        ((POST + b"Transfer-Encoding: chunked\r\n\r\n",), b"1\r\na\r\n"),
    ],
    ids=["slow headers", "one byte", "slow body", "no body", "slow chunks"],
)
def test_a_request_that_does_not_come_in_time_is_answered_408_and_closed(address, pieces, drop):
    answer = dribble(address, *pieces, drop=drop)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 408
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "request_timeout"
    assert "did not come within 0.2 s" in error["message"]


def test_a_connection_that_says_nothing_is_closed_without_a_word(address):
    assert dribble(address) == b""
    assert dribble(address, drop=b"\r\n") == b""
    whole = POST + b"Content-Length: 2\r\n\r\n{}"
    assert dribble(address, whole, drop=b"\r\n").endswith(b"\r\n\r\n2")


def test_what_follows_a_refusal_does_not_keep_a_connection(address):
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    assert status_of(dribble(address, head, drop=b" ")) == 404


def test_headers_without_end_are_refused(address):
    head = POST + b"X-Long: "
    # One byte too many and no further one: a reset would overtake the answer.
    assert status_of(dribble(address, head, b"a" * (2**16 + 1 - len(head)))) == 431


def test_requests_in_time_are_answered_on_one_connection(address):
    whole = POST + b"Content-Length: 2\r\n\r\n{}"
    with socket.create_connection(address, timeout=30) as client:
        for _ in range(3):
            client.sendall(whole + whole)
            answer = b""
            while answer.count(b"HTTP/1.1 200") < 2 or not answer.endswith(b"\r\n\r\n2"):
                answer += client.recv(2**16)
            assert answer.count(b"HTTP/1.1 200") == 2 and b"HTTP/1.1 408" not in answer
