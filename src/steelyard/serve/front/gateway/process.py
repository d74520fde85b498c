"""The gateway process: starts the engine, serves HTTP, and ends without cutting anyone off."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from steelyard.api_keys import read_keys
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.serve.front.engine.spawn import SpawnedEngine
from steelyard.serve.front.engine.supervisor import EngineSupervisor
from steelyard.serve.front.engine.wire import Start
from steelyard.serve.front.gateway.answers import Answers
from steelyard.serve.front.gateway.app import GatewayApp
from steelyard.serve.front.gateway.dispatch import Dispatcher
from steelyard.serve.front.gateway.protocol import timed
from steelyard.serve.front.limits.backlog import Backlog
from steelyard.serve.front.limits.keys import KeyRing
from steelyard.serve.front.metrics import GatewayMetrics
from steelyard.serve.front.text import TextCodec
from steelyard.serve.options import ServeOptions

__all__ = ["run_gateway"]

_POOLS_IN_FLIGHT = 4
"""Predicted tokens let in, in multiples of what the pool holds: some run, the others keep it full
as those end."""

_POLL_S = 0.02
_KEEP_ALIVE_S = 30


class _Server(uvicorn.Server):
    """An HTTP server that leaves signals to us, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Take the configuration; it loads what it needs now and not when the engine is ready."""
        super().__init__(config)
        self.listens = asyncio.Event()
        config.load()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signal."""
        yield


class _Gateway:
    """The parts of one gateway."""

    def __init__(
        self,
        folder: Path,
        options: ServeOptions,
        names: tuple[str, ...],
        spawned: SpawnedEngine | None,
    ) -> None:
        """Make them; nothing runs yet but perhaps the engine's process."""
        self.options = options
        self.metrics = GatewayMetrics()
        self.backlog = Backlog(options.max_requests, options.queue_tokens)
        self.dispatcher = Dispatcher(
            self.backlog, self.metrics, engine_wait_s=options.engine_timeout_s
        )
        keys = read_keys(options.api_key_env, options.api_key_file)
        ring = KeyRing(
            keys, requests_per_min=options.requests_per_min, tokens_per_min=options.tokens_per_min
        )
        codec = TextCodec.load(folder)
        answers = Answers(names, codec, self.dispatcher, self.metrics)
        self.app = GatewayApp(answers, ring, body_limit_bytes=options.body_limit_bytes)
        start = Start(str(folder), to_plain(options.engine))
        self.supervisor = EngineSupervisor(
            start,
            self.dispatcher,
            self.metrics.restarts.inc,
            stall_timeout_s=options.stall_timeout_s,
            note_spare=self.metrics.spares.set if options.spare else None,
            spawned=spawned,
        )

    async def run(self, address: socket.socket) -> None:
        """Serve on a bound socket until told to stop."""
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        # Told to end while the model still loads: the start is given up, nobody waits for it.
        try:
            begin = asyncio.ensure_future(self.supervisor.begin())
            stop = asyncio.ensure_future(ending.wait())
            server = self._server()
            await asyncio.wait({begin, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if begin.done():
                begin.result()
                self._bound_backlog()
                await self._serve(server, address, ending)
            else:
                begin.cancel()
        finally:
            await self.supervisor.end()

    def _bound_backlog(self) -> None:
        """Derive the bound on tokens in flight from the pool, unless it was given."""
        ready = self.dispatcher.ready
        if not self.backlog.max_tokens and ready is not None:
            self.backlog.max_tokens = _POOLS_IN_FLIGHT * ready.slots

    def _server(self) -> _Server:
        """Make the HTTP server."""
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            http=timed(self.options.client_timeout_s),
        )
        return _Server(config)

    async def _serve(self, server: _Server, address: socket.socket, ending: asyncio.Event) -> None:
        """Answer HTTP requests until the end, then finish those in flight."""
        serving = asyncio.ensure_future(server.serve(sockets=[address]))
        listens = asyncio.ensure_future(server.listens.wait())
        await asyncio.wait({serving, listens}, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if not serving.done():
            host = self.options.host
            url = f"http://{f'[{host}]' if ':' in host else host}:{address.getsockname()[1]}"
            print(f"serving on {url}", flush=True)
            print(self._manner(), flush=True)
            print(f"  open it in a browser to try the model, or: steelyard chat {url}", flush=True)
        stop = asyncio.ensure_future(ending.wait())
        await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        await self._drain()
        server.should_exit = True
        await serving

    def _manner(self) -> str:
        """Say how the engine computes."""
        ready = self.dispatcher.ready
        if ready is None:
            return "  the engine is being replaced"
        weights = f", with {ready.weights} weights" if ready.weights else ""
        # Why it is not a faster kernel, so that nobody takes the slow one for all there is.
        note = f" ({ready.kernel_note})" if ready.kernel_note else ""
        pool = (
            f"  keys and values of {ready.slots:,} tokens in {ready.pool_bytes / 2**20:,.0f} MiB, "
            f"{ready.kv_dtype}"
        )
        chosen = f"  {ready.weights_note}\n" if ready.weights_note else ""
        return f"{chosen}  in {ready.kernel} kernels{weights}{note}\n{pool}"

    async def _drain(self) -> None:
        """Take nothing new and wait for what is in flight, as long as the options say."""
        # The HTTP server still listens: a closed port would look like a crash to a load balancer,
        # whereas 503 sends the client elsewhere.
        self.app.is_draining = True
        limit_s = time.monotonic() + self.options.drain_timeout_s
        while self.dispatcher.num_calls and time.monotonic() < limit_s:
            await asyncio.sleep(_POLL_S)
        if self.dispatcher.num_calls:
            self.dispatcher.disconnect("the server is shutting down", retry=False)
            await asyncio.sleep(_POLL_S)


def _bind(options: ServeOptions) -> socket.socket:
    """Take the address before anything slow begins; nobody can connect yet."""
    address = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    try:
        address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address.bind((options.host, options.port))
    except OSError as error:
        address.close()
        raise ConfigError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}",
            hint="choose another host or port",
        ) from error
    return address


def run_gateway(
    folder: Path,
    options: ServeOptions,
    names: tuple[str, ...],
    spawned: SpawnedEngine | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT.

    Args:
        folder: folder of the model.
        options: address, limits, keys.
        names: what clients may call the model, its own name first.
        spawned: process of the engine, when it was started before; the caller ends one that was
            never taken.

    Raises:
        ConfigError: a key source or the tokenizer is wrong, or the address cannot be used.
        BackendError: the engine cannot start.
    """
    if options.gateway_cores:
        os.sched_setaffinity(0, options.gateway_cores)
    gateway = _Gateway(folder, options, names, spawned)
    with contextlib.closing(_bind(options)) as address:
        try:
            import uvloop  # pyright: ignore[reportMissingImports]
        except ImportError:
            asyncio.run(gateway.run(address))
        else:
            uvloop.run(gateway.run(address))
