"""What an actor of a cluster does with its index, and addresses of no cluster; without Ray."""

import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest

from steelyard.errors import BackendError, StoreError
from steelyard.ray_cluster import require_reached
from steelyard.retrieve import IVFFlat
from steelyard.retrieve.serving.live import live_index
from steelyard.retrieve.serving.ray_shards import ShardHolder
from steelyard.retrieve.serving.wire import AskAbout, ShardAbout, ShardAnswer, ShardRefusal

ABOUT = msgspec.msgpack.encode(AskAbout())


def _answer(raw: bytes) -> ShardAnswer:
    return msgspec.msgpack.decode(raw, type=ShardAnswer)


def test_an_index_that_cannot_be_opened_is_told_and_opened_later(tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    holder = ShardHolder(str(path), False)
    told = _answer(holder.opened())
    assert isinstance(told, ShardRefusal)
    assert "a.index is no file" in str(told.error())
    assert holder.ask(ABOUT) == b""
    index = IVFFlat(3)
    index.add(np.eye(3))
    index.save(path)
    found = _answer(holder.ask(ABOUT))
    assert isinstance(found, ShardAbout)
    assert found.size == 3
    with live_index(path, read_only=True) as other:
        assert len(other) == 3
    second = ShardHolder(str(path), False)
    refused = _answer(second.opened())
    assert isinstance(refused, ShardRefusal)
    assert isinstance(refused.error(), StoreError)
    holder.close()
    assert isinstance(_answer(second.opened()), ShardAbout)
    second.close()


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_reached(f"127.0.0.1:{port}")
        require_reached(f"ray://127.0.0.1:{port}")
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
        with pytest.raises(BackendError, match="no Ray cluster listens"):
            require_reached(address)
    require_reached("auto")
