"""`steelyard retrieve serve`: indexes of texts or vectors over HTTP."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from steelyard.api_keys import read_keys
from steelyard.cli.output import Switch
from steelyard.cli.retrieve.search_texts import is_text_index, query_tower
from steelyard.errors import BackendError, ConfigError
from steelyard.retrieve.serving.live import live_index
from steelyard.retrieve.serving.ray_shards import RayShards
from steelyard.retrieve.serving.service import SearchService
from steelyard.retrieve.serving.shards import IndexShard, LocalIndex, ProcessIndex

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from steelyard.retrieve.serving.text_service import TextService

__all__ = ["serve"]

_Indexes = Annotated[
    Path,
    cyclopts.Parameter(
        help="Files that `steelyard retrieve build` wrote, one per shard; or the folder of one "
        "index of texts, or of one that tenants share."
    ),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""


def serve(
    *indexes: _Indexes,
    host: str = "127.0.0.1",
    port: int = 8008,
    api_key_env: str = "",
    api_key_file: Path | None = None,
    read_only: Switch = False,
    no_watch: Switch = False,
    cluster: str = "",
    encoder: Path | None = None,
    plan: str = "",
) -> None:
    """Serve indexes over HTTP: searches by text or vectors, new vectors, embeddings, metrics.

    Example: steelyard retrieve serve my.index --port 8008

    One index runs in this process, each of several in a process of its own, which is started again
    where it dies; answers meanwhile say that they are partial. What was added or removed is kept
    in `<index>.changes` and written into the index when the server ends.

    Args:
        *indexes: files that `steelyard retrieve build` wrote, one per shard; or the folder of one
            index of texts, which is opened anew when it is built anew; or the folder of an index
            that tenants share, where the name of a key in --api-key-file is a tenant, or admin.
        host: address to listen on; other machines reach it only where it is not this machine's own.
        port: port to listen on; 0 for a free one.
        api_key_env: environment variable with keys, separated by commas, one of which is asked for.
        api_key_file: file with one `KEY [NAME]` per line.
        read_only: take no new vectors; several servers may then read one file.
        no_watch: compare no answers with exact ones while there is nothing else to do.
        cluster: Ray address that the shards are held on, such as auto, an actor each, spread over
            its machines; files must be found there too.
        encoder: folder of a tower of queries for an index of texts that was built with the tower
            of documents it belongs to, such as a student of `steelyard retrieve towers distill`.
        plan: run of `steelyard plan retriever --keep` for this index and tower of queries: searches
            are timed first, and written beside what was planned.
    """
    if not indexes:
        raise ConfigError(
            "no index is given", hint="name a file: steelyard retrieve serve my.index"
        )
    keys = read_keys(api_key_env, api_key_file)
    if host not in ("127.0.0.1", "localhost", "::1") and not keys:
        raise ConfigError(
            f"--host {host} is reached by others, and no key is asked for",
            hint="give --api-key-file or --api-key-env, or listen on 127.0.0.1",
        )
    try:
        _serve(
            indexes,
            keys,
            (host, port),
            read_only=read_only,
            is_watched=not no_watch,
            cluster=cluster,
            asked=(encoder, plan),
        )
    except ImportError as error:
        raise BackendError(
            f"serving needs {error.name}", hint="pip install 'steelyard[retrieve]'"
        ) from error


def _serve(
    indexes: tuple[Path, ...],
    keys: dict[str, str],
    address: tuple[str, int],
    *,
    read_only: bool,
    is_watched: bool,
    cluster: str,
    asked: tuple[Path | None, str],
) -> None:
    """Serve what the paths hold: vectors, texts, or vectors that tenants share."""
    from steelyard.retrieve.serving.app import make_app
    from steelyard.retrieve.serving.tenant_app import make_tenant_app
    from steelyard.retrieve.serving.text_app import make_text_app
    from steelyard.retrieve.serving.text_service import TextService
    from steelyard.retrieve.tenants.store import is_tenant_store, writing_store

    alone = [path for path in indexes if is_text_index(path) or is_tenant_store(path)]
    if alone and len(indexes) > 1:
        raise ConfigError(
            f"{alone[0]} is an index of texts or of tenants, which is served alone",
            hint="name it alone, or shards of vectors",
        )
    if alone and cluster:
        raise ConfigError(
            f"--cluster holds shards of vectors, and {alone[0]} is an index of texts or of tenants",
            hint="leave --cluster out",
        )
    encoder, plan = asked
    if encoder is not None or plan:
        _require_texts(indexes)
    if not alone:
        with _service(indexes, cluster, read_only=read_only) as service:
            app = make_app(service, keys=keys, is_watched=is_watched)
            count = sum(about.size for about in service.about())
            told = f"{count:,} vectors of {service.dim} numbers"
            _run(app, address, told, "/search /add /remove /health /metrics")
    elif is_text_index(alone[0]):
        texts = TextService(alone[0], query_tower(encoder) if encoder else None)
        for line in _planned(plan, texts):
            print(line, flush=True)
        app, told = make_text_app(texts, keys=keys), f"{len(texts):,} passages"
        _run(app, address, told, "/search /v1/embeddings /v1/models /health /metrics")
    else:
        with writing_store(alone[0]) as store:
            app = make_tenant_app(store, keys=keys)
            told = f"{len(store.index):,} vectors of {store.index.dim} numbers to tenants"
            _run(app, address, told, "/search /add /grant /revoke /audit /health /metrics")


def _require_texts(indexes: tuple[Path, ...]) -> None:
    """Refuse a tower of queries for what is asked by vectors."""
    for path in indexes:
        if not is_text_index(path):
            raise ConfigError(
                f"--encoder and --plan are of queries of an index of texts, and {path} is none",
                hint="leave them out: vectors are asked by vectors",
            )


def _planned(plan: str, texts: "TextService") -> list[str]:
    """Time searches of an index that was planned; return what was measured and planned."""
    if not plan:
        return []
    from steelyard.cli.retrieve.planned import check_retriever, told_checks
    from steelyard.cli.retrieve.search_texts import asking_parameters
    from steelyard.retrieve.corpus.pilot import measure_corpus

    measured = measure_corpus(texts.index.store, 0.0)
    return told_checks(check_retriever(plan, texts.index, measured, asking_parameters(texts.index)))


def _run(app: "FastAPI", place: tuple[str, int], told: str, routes: str) -> None:
    """Serve an application until a signal comes."""
    import uvicorn

    host, port = place
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False)
    server = _until_told(uvicorn.Server(config))
    address = _bound(host, port)
    where = f"http://{f'[{host}]' if ':' in host else host}:{address.getsockname()[1]}"
    print(f"serving {told} on {where}", flush=True)
    print(f"  {routes}; all are described at {where}/docs", flush=True)
    server.run(sockets=[address])


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        # Python adds to the words of the system where it tried, which stands here already.
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        is_host = isinstance(error, socket.gaierror)
        raise ConfigError(
            f"cannot listen on --host {host} --port {port}: {reason}",
            hint=f"choose another {'--host' if is_host else '--port'}",
        ) from error


def _until_told(server: "uvicorn.Server") -> "uvicorn.Server":
    """Let a server end by a signal and this process go on: changes are written after it."""

    @contextlib.contextmanager
    def capture() -> Iterator[None]:
        # uvicorn would raise the signal again at its end, and the process would die of it.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, setattr, server, "should_exit", True)
        yield

    server.capture_signals = capture
    return server


@contextlib.contextmanager
def _service(
    indexes: tuple[Path, ...], cluster: str, *, read_only: bool
) -> Iterator[SearchService]:
    """Open the shards, and close them at the end."""
    if len(set(indexes)) < len(indexes):
        raise ConfigError("an index is named twice", hint="name each shard once")
    with ExitStack() as stack:
        if len(indexes) == 1 and not cluster:
            live = stack.enter_context(live_index(indexes[0], read_only=read_only))
            shards: list[IndexShard] = [LocalIndex(live)]
        else:
            shards = _started(stack, indexes, cluster, read_only=read_only)
        yield SearchService(shards)


def _started(
    stack: ExitStack, indexes: tuple[Path, ...], cluster: str, *, read_only: bool
) -> list[IndexShard]:
    """Start a process, or an actor of a cluster, for each index."""
    start = ProcessIndex
    if cluster:
        room = RayShards(cluster, shards=len(indexes))
        stack.callback(room.close)
        start = room.start
    shards: list[IndexShard] = []
    for path in indexes:
        shard = start(path, read_only=read_only)
        stack.callback(shard.close)
        shards.append(shard)
    return shards
