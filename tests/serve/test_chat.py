import asyncio
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from steelyard.cli import main as entry
from steelyard.cli.terminal import Terminal, left_out_notice
from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.serve.client.conversation import Conversation
from steelyard.serve.client.local import server_for
from steelyard.serve.client.wire.address import Endpoint

CONTEXT = 400
"""Longest conversation in characters, which this server counts as tokens."""


class ChatServer:
    """Answers a question with its last words in markdown; "wait" makes it slow, "fail" refuses."""

    def __init__(self, listen):
        self.bodies = []
        self.url = listen(self.serve)

    async def serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            body = json.loads(await reader.readexactly(size) or b"{}")
            if head.startswith(b"GET"):
                writer.write(
                    b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"data": [{"id": "first"}, '
                    b'{"id": "second"}]}'
                )
                return
            self.bodies.append(body)
            tokens = sum(len(item["content"]) for item in body["messages"])
            if tokens >= CONTEXT:
                writer.write(
                    b'HTTP/1.1 400 X\r\nConnection: close\r\n\r\n{"error": {"message": "too '
                    b'long", "code": "context_length_exceeded"}}'
                )
                return
            await self.answer(writer, body["messages"][-1]["content"], tokens)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, question, tokens):
        if "fail" in question:
            writer.write(
                b'HTTP/1.1 400 X\r\nConnection: close\r\n\r\n{"error": {"message": "no such '
                b'[thing]"}}'
            )
            return
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for word in ("**bold** ", question.split()[-1], " end"):
            writer.write(
                b"data: "
                + json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]}).encode()
                + b"\n\n"
            )
            await writer.drain()
            if "wait" in question:
                await asyncio.sleep(30)
        writer.write(
            b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": '
            b"3}}\n\ndata: [DONE]\n\n" % tokens
        )


@pytest.fixture(scope="module")
def server(listen):
    return ChatServer(listen)


@pytest.fixture
def talk(server):
    server.bodies.clear()
    return Conversation(endpoint=Endpoint.parse(server.url), model="first")


@pytest.fixture
def screen(talk):
    console = Console(file=io.StringIO(), width=100, highlight=False)
    terminal = Terminal(talk, console)

    def shown():
        text = console.file.getvalue()
        console.file.seek(0)
        console.file.truncate()
        return text

    return terminal, shown


def run(*words):
    with pytest.raises(SystemExit) as caught:
        entry.main([str(word) for word in words])
    return caught.value.code


def test_a_conversation_remembers_what_was_said(server, talk):
    pieces = []
    talk.set_system("be kind")
    reply = talk.ask("say hello", pieces.append)
    assert (
        reply.text == "".join(pieces) == "**bold** hello end"
        and reply.output_tokens == 3
        and not reply.is_stopped
    )
    assert 0 < reply.ttft_s <= reply.seconds and reply.tokens_per_s > 0
    talk.ask("and again", pieces.append)
    asked = server.bodies[-1]
    assert [item["role"] for item in asked["messages"]] == ["system", "user", "assistant", "user"]
    assert asked["model"] == "first" and asked["stream"] is True
    assert talk.take_back() == "and again" and len(talk.messages) == 3
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "be kind"}]
    talk.set_system("")
    with pytest.raises(ConfigError, match="nothing was asked"):
        talk.take_back()


def test_a_failed_question_leaves_the_conversation_as_it_was(talk):
    talk.ask("hello", lambda _: None)
    before = list(talk.messages)
    with pytest.raises(BackendError, match=r"http 400.*no such"):
        talk.ask("please fail", lambda _: None)
    assert talk.messages == before
    dead = Conversation(endpoint=Endpoint.parse("http://127.0.0.1:1"))
    with pytest.raises(BackendError, match="no server answers"):
        dead.ask("hello", lambda _: None)


@pytest.mark.parametrize("context", [CONTEXT, 0])
def test_the_oldest_turns_are_left_out_when_the_context_is_full(server, talk, tmp_path, context):
    talk.context = context
    talk.set_system("be kind")
    replies = [talk.ask(f"question {number} " + "x" * 60, lambda _: None) for number in range(9)]
    assert replies[0].left_out == 0 and replies[-1].left_out > 3
    sent = server.bodies[-1]["messages"]
    assert sent[0]["role"] == "system" and sent[1]["role"] == "user"
    assert sent[-1]["content"].startswith("question 8")
    # What was said stays whole, to be saved.
    assert sum(item["role"] == "user" for item in talk.messages) == 9
    if context:
        # The answer had its room each time, so that nothing was refused and sent again.
        assert len(server.bodies) == 9
        rooms = [
            CONTEXT - sum(len(m["content"]) for m in body["messages"]) for body in server.bodies
        ]
        assert min(rooms) >= talk.room
    assert left_out_notice(replies[0], context) == ""
    assert f"the oldest {replies[-1].left_out} turns" in left_out_notice(replies[-1], context)
    before = list(talk.messages)
    with pytest.raises(BackendError, match="the question alone does not fit") as caught:
        talk.ask("x" * 2 * CONTEXT, lambda _: None)
    assert "fewer words" in caught.value.hint and talk.messages == before


def test_a_reader_that_goes_away_is_not_taken_for_a_failing_server(talk):
    def closed(_):
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        talk.ask("hello", closed)
    assert talk.messages == []


def test_a_closed_pipe_ends_the_chat_quietly(server):
    command = [sys.executable, "-m", "steelyard", "chat", server.url, "--prompt", "hello"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as chat:
        chat.stdout.close()
        assert chat.stderr.read() == b""
    assert chat.returncode == 0


@pytest.fixture
def ctrl_c():
    # A shell starts background jobs with interrupts ignored, and their children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupting_stops_the_answer_only(talk):
    def stop(_):
        os.kill(os.getpid(), signal.SIGINT)

    reply = talk.ask("please wait", stop)
    assert (
        reply.is_stopped
        and reply.text == "**bold** "
        and talk.messages[-1]["content"] == "**bold** "
    )
    assert talk.ask("hello", lambda _: None).text == "**bold** hello end"


def test_conversations_are_kept_and_checked(talk, tmp_path):
    talk.set_parameter("temperature=0.5")
    talk.set_parameter("stop=x y")
    talk.ask("hello", lambda _: None)
    talk.save(tmp_path / "chat.json")
    other = Conversation(endpoint=talk.endpoint)
    other.load(tmp_path / "chat.json")
    assert other.messages == talk.messages and other.parameters == {
        "temperature": 0.5,
        "stop": "x y",
    }
    other.set_parameter("stop=")
    assert "stop" not in other.parameters
    for number, text in enumerate(
        (
            '{"messages": [{"role": "king", "content": "x"}]}',
            "[1]",
            "{",
            '{"messages": [{"role": "user"}]}',
        )
    ):
        (tmp_path / f"{number}.json").write_text(text)
        with pytest.raises(DataError):
            other.load(tmp_path / f"{number}.json")
    assert other.messages == talk.messages
    with pytest.raises(ConfigError, match="cannot read"):
        other.set_parameter("hot")


def test_a_scripted_session(server, talk, screen, tmp_path):
    terminal, shown = screen
    for line, words in (
        ("hello there", ("bold there end", "3 tokens", "tokens/s", "first after")),
        ("/help", ("/retry", "/save FILE", "Ctrl-D")),
        ("/system speak [b]softly[/b]", ("speak [b]softly[/b]",)),
        ("/system", ("speak [b]softly[/b]",)),
        ("/params temperature=0.3 top_p=0.9", ("temperature = 0.3", "top_p = 0.9")),
        ("/retry", ("bold there end",)),
        ("/model", ("* first", "second")),
        ("/model second", ("* second",)),
        ("/model third", ("error: the server has no model 'third'", "it has first, second")),
        (f"/save {tmp_path / 'chat.json'}", ("saved in",)),
        ("/clear", ("forgotten",)),
        (f"/load {tmp_path / 'chat.json'}", ("3 messages",)),
        ("/load /no/such", ("error: no such file",)),
        ("/save", ("error: /save needs a file",)),
        ("/retri", ("error: no command /retri", "did you mean /retry?")),
        ("/params hot", ("error: cannot read 'hot'",)),
        ("please fail", ("error:", "no such [thing]")),
        ("//etc is a folder", ("bold folder end",)),
        ("", ()),
    ):
        assert terminal.take(line)
        text = shown()
        assert all(word in text for word in words), text
    assert server.bodies[1]["messages"][0] == {"role": "system", "content": "speak [b]softly[/b]"}
    assert server.bodies[1]["temperature"] == 0.3 and server.bodies[-1]["model"] == "second"
    assert server.bodies[-1]["messages"][-1]["content"] == "/etc is a folder"
    assert not terminal.take("/quit")


def test_lines_are_read_until_the_end(talk, screen, monkeypatch, tmp_path):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    terminal, shown = screen
    lines = iter(["one \\", "two", KeyboardInterrupt(), EOFError()])

    def answer(_):
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", answer)
    terminal.run()
    assert "bold two end" in shown() and talk.messages[0]["content"] == "one \ntwo"


class Pipe(io.StringIO):
    def isatty(self):
        return False


def test_piped_questions_are_answered_on_standard_output(server, monkeypatch, capsys):
    server.bodies.clear()
    monkeypatch.setattr("sys.stdin", Pipe("some text\n"))
    assert (
        run(
            "chat",
            server.url,
            "--prompt",
            "sum up",
            "--system",
            "short",
            "--params",
            "max_tokens=5",
            "top_k=2",
        )
        == 0
    )
    assert capsys.readouterr().out == "**bold** text end\n"
    assert (
        server.bodies[0]["messages"][1]["content"] == "sum up\n\nsome text"
        and server.bodies[0]["top_k"] == 2
    )
    monkeypatch.setattr("sys.stdin", Pipe(""))
    assert run("chat", server.url) == 2 and "there is no question" in capsys.readouterr().err
    assert (
        run("chat", server.url, "--model", "third", "--prompt", "x") == 2
        and "no model 'third'" in capsys.readouterr().err
    )
    assert (
        run("chat", server.url, "--prompt", "fail") == 2
        and "no such [thing]" in capsys.readouterr().err
    )


def test_folders_without_a_model_and_servers_that_do_not_start(tmp_path):
    with server_for("http://x:1") as url:
        assert url == "http://x:1"
    with pytest.raises(ConfigError, match=r"no config\.json"), server_for(str(tmp_path)):
        pass
    (tmp_path / "config.json").write_text("{nonsense")
    with (
        pytest.raises(BackendError, match=r"the server ended: .*config"),
        server_for(str(tmp_path)),
    ):
        pass
