"""The process of one shard: answers what comes over its socket until that is closed."""

import socket
import sys
from pathlib import Path

import numpy as np

from steelyard.errors import SteelyardError
from steelyard.frames import Channel
from steelyard.retrieve.serving.live import LiveIndex, live_index
from steelyard.retrieve.serving.wire import (
    AddRows,
    AskAbout,
    FindRows,
    HoldsRows,
    ListRows,
    RemoveRows,
    ShardAbout,
    ShardAnswer,
    ShardAsk,
    ShardDone,
    ShardFound,
    ShardHolds,
    ShardIds,
    ShardRefusal,
    shard_codec,
)

__all__ = ["answer_ask"]


def answer_ask(live: LiveIndex, ask: ShardAsk) -> ShardAnswer:
    """Return what an index says to a message; errors of ours are answers too."""
    try:
        return _answer(live, ask)
    except SteelyardError as error:
        return ShardRefusal.of(error)


def _answer(live: LiveIndex, ask: ShardAsk) -> ShardAnswer:
    match ask:
        case AskAbout():
            num_bytes = sum(live.index.memory_bytes().values())
            kind = live.index.kind
            return ShardAbout(live.dim, live.metric, len(live), live.next_id, num_bytes, kind)
        case FindRows():
            queries = np.frombuffer(ask.queries, np.float32).reshape(-1, ask.dim)
            if ask.exactly:
                return ShardFound.of(live.search_exactly(queries, ask.k))
            return ShardFound.of(live.search(queries, ask.k, nprobe=ask.nprobe or None))
        case AddRows():
            ids = np.frombuffer(ask.ids, np.int64)
            vectors = np.frombuffer(ask.vectors, np.float32).reshape(len(ids), -1)
            live.add(vectors, ids)
        case HoldsRows():
            is_there = live.holds(np.frombuffer(ask.ids, np.int64))
            return ShardHolds(is_there.tobytes())
        case ListRows():
            return ShardIds(live.ids().tobytes())
        case RemoveRows():
            live.remove(np.frombuffer(ask.ids, np.int64))
    return ShardDone()


def main() -> None:
    """Serve the index of the command line over the socket that was inherited."""
    handle, path, mode = sys.argv[1:]
    connection = socket.socket(fileno=int(handle))
    channel = Channel(connection, shard_codec(ShardAsk))
    try:
        with live_index(Path(path), read_only=mode == "read") as live:
            # The first search may compile: whoever asks next does not wait for that.
            live.search(np.zeros((1, live.dim), np.float32), 1)
            # This answer comes unasked: the index is open.
            channel.send(answer_ask(live, AskAbout()))
            while (ask := channel.receive()) is not None:
                channel.send(answer_ask(live, ask))
                if live.is_due():
                    live.settle()
    except SteelyardError as error:
        channel.send(ShardRefusal.of(error))
    except OSError:
        # The server is gone; there is nobody to tell.
        return


if __name__ == "__main__":
    main()
