"""A store: its nodes, the controller that keeps them whole, and a client."""

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from steelyard.data.shardstore.client import StoreClient
from steelyard.data.shardstore.config import NodeConfig
from steelyard.data.shardstore.rows import MAX_KEY, Rows
from steelyard.data.shardstore.shardmap import Shard, ShardMap, even_shards
from steelyard.errors import ConfigError, StoreError, require
from steelyard.files import exclusive, read_json, write_json
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.driver import ShardDriver
from steelyard.operate.shards.launching import LocalNodes, NodeLauncher
from steelyard.operate.shards.placement import distribute
from steelyard.operate.shards.policy import Adaptive
from steelyard.train.chaos import FaultKind

__all__ = ["ShardCluster", "StoreOptions"]

T = TypeVar("T")
_LOOK_S = 0.5
"""Seconds between looks for nodes that have begun again elsewhere."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes of a store have in common.

    Attributes:
        row_bytes: longest value.
        shards: ranges of keys to begin with.
        keys: keys lie below it; ranges are of equal width up to there.
        transport: "unix" or "tcp" (on this host's loopback, with a secret), for nodes of this host.
        persist: keep a log, so that a restarted node has its rows.
        sync: wait for the disk with each write.
        disk_bytes: most bytes of a node's log and table; 0 for what the disk holds.
        bytes_per_s: speed of each node's link and disk; 0 for no limit.
        capacity: rows that each node makes room for at the start.
    """

    row_bytes: int = 128
    shards: int = 64
    keys: int = MAX_KEY + 1
    transport: str = "unix"
    persist: bool = True
    sync: bool = False
    disk_bytes: int = 0
    bytes_per_s: float = 0.0
    capacity: int = 1024

    def __post_init__(self) -> None:
        require(
            self,
            transport=(self.transport in ("unix", "tcp"), '"unix" or "tcp"'),
            shards=(self.shards >= 1, "at least 1"),
        )


class ShardCluster:
    """Some nodes, and the one controller of their map.

    The folder is held by one process at a time, so there is one controller; its map is on disk, and
    a later controller goes on from there. When the controller dies, its nodes end too. Nodes are
    processes of this host unless a launcher starts them elsewhere, such as `ray_nodes.RayNodes`.

    Example:
        >>> with ShardCluster(nodes=4, store=Path("store")) as cl:  # doctest: +SKIP
        ...     cl.put(np.array([7]), np.zeros((1, 128), np.uint8))

    Source: arXiv 2405.00004 for what is kept up: classes by time, replicas by load, repair at every
        scale, moves ahead of the load.
    """

    def __init__(
        self,
        *,
        nodes: int = 4,
        store: Path,
        policy: Adaptive | None = None,
        options: StoreOptions | None = None,
        launcher: NodeLauncher | None = None,
        seed: int = 0,
    ) -> None:
        """Start nodes and wait until each of them serves.

        Args:
            nodes: processes to start; those that a folder has already are started again.
            store: folder of map and nodes.
            policy: what the controller may do.
            options: what nodes have in common; those of the folder are kept where it has some.
            launcher: starts the nodes, and is stopped at the end; None for processes of this host.
            seed: seed of draws.

        Raises:
            ConfigError: there is no node, or the folder's rows have another width.
            StoreError: another process holds the folder.
            BackendError: a node does not start.
        """
        if nodes < 1:
            raise ConfigError(f"nodes is {nodes}, but must be at least 1", hint="raise it")
        self.policy, self.options = policy or Adaptive(), options or StoreOptions()
        self._folder = store.resolve()
        self._key = secrets.token_hex(32)
        self._local = threading.local()
        self._clients: list[StoreClient] = []
        self._launcher = launcher
        self._killed: dict[str, int] = {}
        self._exit = ExitStack()
        self._exit.enter_context(exclusive(self._folder, wait_s=3.0))
        try:
            self._begin(nodes, seed)
        except BaseException:
            self.close()
            raise

    def _begin(self, nodes: int, seed: int) -> None:
        """Read the folder, start what it names and what was asked, and place the shards."""
        shards, names, version = self._stored(nodes)
        launcher = self._launcher = self._launcher or LocalNodes(self.options.transport)
        generator = np.random.default_rng(seed)
        self._controller = ShardController(shards, self.policy, generator=generator, epoch=version)
        self._driver = ShardDriver(self._controller, bytes.fromhex(self._key), self._save)
        self._driver.start()
        self._exit.callback(self._driver.stop)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._start, names))
        self._wait(lambda: all(self._controller.nodes[name].report for name in names), 10.0)
        self._call(self._place)
        self._wait(self._is_served, 30.0)
        if not launcher.is_local:
            self._follow_moves(launcher)

    def _follow_moves(self, launcher: NodeLauncher) -> None:
        """Look for nodes that have begun again by themselves, in a thread, until the end."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(_LOOK_S):
                for name, (address, host) in launcher.moved().items():
                    self._call(lambda n=name, a=address, h=host: self._driver.add(n, a, h))

        thread = threading.Thread(target=look, name="moves", daemon=True)
        thread.start()
        self._exit.callback(thread.join)
        self._exit.callback(is_over.set)

    def _stored(self, nodes: int) -> tuple[tuple[Shard, ...], list[str], int]:
        """Return shards, nodes and version of the folder's map, or new ones."""
        names = [f"n{number}" for number in range(nodes)]
        path = self._folder / "map.json"
        if not path.exists():
            return even_shards(self.options.shards, keys=self.options.keys), names, 0
        found = msgspec.convert(read_json(path), dict[str, Any])
        held = msgspec.convert(found["map"], ShardMap)
        self.options = msgspec.convert(found["options"], StoreOptions)
        # Every writer begins an epoch of its own: what an earlier process of it wrote last is not
        # known here.
        shards = tuple(
            shard.with_(learners=(), sealed=False)
            if shard.is_cold
            else shard.with_(epoch=shard.epoch + 1, learners=(), sealed=False, fragments=())
            for shard in held.shards
        )
        return shards, sorted({*held.addresses, *names}), held.version

    def _save(self) -> None:
        """Keep the map of this moment."""
        held = {
            "map": msgspec.to_builtins(self._controller.map),
            "options": msgspec.to_builtins(self.options),
        }
        write_json(self._folder / "map.json", held)

    def _start(self, name: str) -> None:
        """Start a node and name it to the controller."""
        options, launcher = self.options, self._nodes()
        config = NodeConfig(
            name=name,
            address="unix:",
            folder=self._folder / name,
            row_bytes=options.row_bytes,
            key=self._key,
            capacity=options.capacity,
            parity=self.policy.regenerate,
            persist=options.persist,
            sync=options.sync,
            disk_bytes=options.disk_bytes,
            bytes_per_s=options.bytes_per_s,
            gossip_s=2 * self.policy.ping_s,
            suspicion=self.policy.suspicion,
        )
        address, host = launcher.start(config)
        self._call(lambda: self._driver.add(name, address, host))

    def _nodes(self) -> NodeLauncher:
        """Return what starts nodes."""
        assert self._launcher is not None
        return self._launcher

    def _place(self) -> None:
        """Place shards that have never had a holder on their first ones."""
        new = {s.id: 1.0 for s in self._controller.map.shards if not s.replicas and not s.is_cold}
        copies = dict.fromkeys(new, self.policy.replicas)
        nodes = {name: view.capacity for name, view in self._controller.nodes.items()}
        hosts = {name: view.host for name, view in self._controller.nodes.items() if view.host}
        placed = distribute(new, copies, nodes, eps=self.policy.eps, hosts=hosts) if new else {}
        changed = [
            shard.with_(replicas=placed[shard.id])
            for shard in self._controller.map.shards
            if shard.id in placed
        ]
        self._controller.map = self._controller.map.changed(*changed)

    def _is_served(self) -> bool:
        """Whether every node has the newest map and a lease."""
        version = self._controller.map.version
        views = self._controller.nodes.values()
        return all(view.report and view.report.map_version >= version for view in views)

    def _call(self, work: Callable[[], T]) -> T:
        """Run something beside the controller, in its thread."""
        return self._driver.call(work)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Wait until something holds; StoreError when it does not within the time."""
        end_s = time.monotonic() + timeout_s
        while not self._call(is_done):
            if time.monotonic() > end_s:
                raise StoreError(
                    f"the store was not ready within {timeout_s:.0f} s", hint="look at its status"
                )
            time.sleep(0.02)

    # -- rows ---------------------------------------------------------------------------------

    def client(self) -> StoreClient:
        """Return this thread's client."""
        found = getattr(self._local, "client", None)
        if found is None:
            found = self._local.client = StoreClient(
                lambda: self.map,
                row_bytes=self.options.row_bytes,
                key=bytes.fromhex(self._key),
                is_local=self._nodes().is_local,
                why_lost=lambda shard: self._call(lambda: self._controller.targets.why_lost(shard)),
                warm=self._warm,
            )
            self._clients.append(found)
        return found

    def put(self, keys: np.ndarray, values: np.ndarray, lengths: np.ndarray | None = None) -> None:
        """Write rows; errors as of `StoreClient.put`."""
        self.client().put(keys, values, lengths)

    def get(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read rows: lengths int32 [N] and values uint8 [N, W]; errors as of `StoreClient.get`."""
        return self.client().get(keys)

    def scan(self, first: int, last: int) -> Rows:
        """Read a range in order; errors as of `StoreClient.scan`."""
        return self.client().scan(first, last)

    def _warm(self, shard: Shard) -> None:
        """Bring a cold shard to memory, where nothing else happens to it."""
        self._call(lambda: self._driver.warm(shard.id))

    # -- nodes --------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """End a node's process at once, as a crash does; its folder stays."""
        view = self._controller.nodes.get(name)
        self._killed[name] = view.report.boot if view and view.report else -1
        self._strike("kill", name)

    def hang(self, name: str) -> None:
        """Stop a node's process where it stands; it answers nothing and knows nothing of it."""
        self._strike("stop", name)

    def resume(self, name: str) -> None:
        """Let a stopped node go on."""
        self._strike("resume", name)

    def start(self, name: str) -> None:
        """Start a node, a new one or one that has ended; rows of its folder are read again."""
        if self._nodes().is_running(name):
            raise ConfigError(f"node {name!r} is running", hint="kill it first")
        self._start(name)

    def _strike(self, kind: FaultKind, name: str) -> None:
        if name not in self._controller.nodes:
            known = ", ".join(sorted(self._controller.nodes))
            raise ConfigError(f"no node {name!r}", hint=f"nodes are {known}")
        self._nodes().strike(kind, name)

    def wait_whole(self, timeout_s: float = 60.0) -> float:
        """Wait until every shard has its copies and no change is under way.

        Args:
            timeout_s: longest wait.

        Returns:
            Seconds waited.

        Raises:
            StoreError: it takes longer.
        """
        begin_s = time.monotonic()
        controller = self._controller
        self._wait(lambda: controller.is_whole() and not controller.tasks, timeout_s)
        return time.monotonic() - begin_s

    def wait_dead(self, name: str, timeout_s: float = 30.0) -> None:
        """Wait until it is known that a node's process is dead; StoreError when that takes longer.

        Where the launcher begins it again, its next process may be heard before.
        """
        view, killed = self._controller.nodes[name], self._killed.get(name)

        def is_known() -> bool:
            is_new = killed is not None and view.report is not None and view.report.boot != killed
            return is_new or self._controller.detector.state(name) == "dead"

        self._wait(is_known, timeout_s)

    @property
    def map(self) -> ShardMap:
        """The newest map."""
        return self._controller.map

    def status(self) -> dict[str, Any]:
        """Return map, nodes, classes, repairs under way and bytes moved, in plain values."""
        return self._call(self._driver.status)

    def close(self) -> None:
        """End all nodes and let the folder go."""
        for client in self._clients:
            client.close()
        self._exit.close()
        if self._launcher is not None:
            self._launcher.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
