"""Lattice Boltzmann on a periodic box (D3Q19, BGK, doubles) on one process or two, timed.

The box is cut along x. After each step a process hands the 5 populations that left through each
face to its neighbor through shared memory; a byte over a pipe says that they are there.
"""

import contextlib
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from steelyard.jit import njit

__all__ = ["Box", "core_s_per_site", "run_box", "triad_bytes_per_s"]

_MOVES = np.array(
    [(0, 0, 0)]
    + [move for move in np.ndindex(3, 3, 3) if 1 <= sum(abs(part - 1) for part in move) <= 2]
)
_MOVES[1:] -= 1
_WEIGHTS = np.array([1 / 3, 1 / 18, 1 / 36])[np.abs(_MOVES).sum(axis=1)]
_RIGHT, _LEFT = np.flatnonzero(_MOVES[:, 0] > 0), np.flatnonzero(_MOVES[:, 0] < 0)


@dataclass(kw_only=True)
class Box:
    """One process's part of the box, with a layer of ghosts all around.

    Attributes:
        size: sites of the part along x, y and z.
        tau: relaxation time; the viscosity is (tau - 1/2) / 3.
        velocity: velocity along y at each x of the part, [size x].
        now: populations, [19, x + 2, y + 2, z + 2].
    """

    size: tuple[int, int, int]
    velocity: np.ndarray
    tau: float = 0.8
    now: np.ndarray = field(init=False)
    _next: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Fill the box with the equilibrium of density 1 and the given velocity."""
        along = _MOVES[:, 1][:, None] * self.velocity
        rest = 1 + 3 * along + 4.5 * along**2 - 1.5 * self.velocity**2
        self.now = np.ones((19, *(part + 2 for part in self.size)))
        self.now[:, 1:-1] = (_WEIGHTS[:, None] * rest)[:, :, None, None]
        self._next = np.ones_like(self.now)

    def update(self) -> None:
        """Stream and collide all sites; ghosts along x must have been filled."""
        _wrap(self.now)
        _step(self.now, self._next, _MOVES, _WEIGHTS, 1 / self.tau)
        self.now, self._next = self._next, self.now

    def faces(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what leaves to the left and to the right, each [5, y + 2, z + 2]."""
        return self.now[_LEFT, 1], self.now[_RIGHT, -2]

    def take(self, from_left: np.ndarray, from_right: np.ndarray) -> None:
        """Fill the ghosts with what the neighbors sent."""
        self.now[_RIGHT, 0] = from_left
        self.now[_LEFT, -1] = from_right

    def means(self) -> tuple[float, np.ndarray]:
        """Return the mean density, and the mean velocity along y at each x."""
        inner = self.now[:, 1:-1, 1:-1, 1:-1]
        density = inner.sum(axis=0)
        flow = np.tensordot(_MOVES[:, 1].astype(float), inner, axes=1)
        return float(density.mean()), (flow / density).mean(axis=(1, 2))


@njit(fastmath=True)
def _step(now, after, moves, weights, omega):  # pragma: no cover - compiled
    """Pull populations from the neighbors, and relax them towards equilibrium, row by row."""
    sizes = now.shape
    count = sizes[3] - 2
    held = np.empty((19, count))
    density, inverse = np.empty(count), np.empty(count)
    vx, vy, vz, square = np.empty(count), np.empty(count), np.empty(count), np.empty(count)
    for x in range(1, sizes[1] - 1):
        for y in range(1, sizes[2] - 1):
            density[:], vx[:], vy[:], vz[:] = 0.0, 0.0, 0.0, 0.0
            for q in range(19):
                mx, my, mz = moves[q, 0], moves[q, 1], moves[q, 2]
                # A slice from 0 on: an index that could be negative would not be vectorized.
                row = now[q, x - mx, y - my, 1 - mz : 1 - mz + count]
                fx, fy, fz = float(mx), float(my), float(mz)
                for z in range(count):
                    value = row[z]
                    held[q, z] = value
                    density[z] += value
                    vx[z] += fx * value
                    vy[z] += fy * value
                    vz[z] += fz * value
            for z in range(count):
                inverse[z] = 1 / density[z]
                vx[z] *= inverse[z]
                vy[z] *= inverse[z]
                vz[z] *= inverse[z]
                square[z] = 1 - 1.5 * (vx[z] * vx[z] + vy[z] * vy[z] + vz[z] * vz[z])
            for q in range(19):
                fx, fy, fz = float(moves[q, 0]), float(moves[q, 1]), float(moves[q, 2])
                part = omega * weights[q]
                out = after[q, x, y, 1:-1]
                for z in range(count):
                    along = fx * vx[z] + fy * vy[z] + fz * vz[z]
                    rest = density[z] * (square[z] + 3 * along + 4.5 * along * along)
                    out[z] = (1 - omega) * held[q, z] + part * rest


@njit()
def _wrap(now):  # pragma: no cover - compiled
    """Fill the ghosts along y and z, which no process shares."""
    for q in range(now.shape[0]):
        for x in range(now.shape[1]):
            now[q, x, 0, :] = now[q, x, -2, :]
            now[q, x, -1, :] = now[q, x, 1, :]
            now[q, x, :, 0] = now[q, x, :, -2]
            now[q, x, :, -1] = now[q, x, :, 1]


def run_box(
    size: tuple[int, int, int], steps: int, num_processes: int
) -> tuple[np.ndarray, float, np.ndarray]:
    """Run a shear wave in a box of equal parts side by side along x.

    Args:
        size: sites of one process's part.
        steps: steps, the first tenth of which is not timed.
        num_processes: 1, or 2 neighbors of each other on both sides.

    Returns:
        Seconds of each timed step (of the slower process), the mean density, and the mean velocity
        along y at each x of the whole box.
    """
    context = multiprocessing.get_context("spawn")
    face = 5 * (size[1] + 2) * (size[2] + 2)
    # Two slots, used in turn: a process may be a step ahead, never two.
    shared = SharedMemory(create=True, size=num_processes * 2 * 2 * face * 8)
    pipes = context.Pipe()
    answers = [context.Pipe(duplex=False) for _ in range(num_processes)]
    workers = [
        context.Process(
            target=_work, args=(size, steps, rank, num_processes, shared.name, pipes[rank], end)
        )
        for rank, (_, end) in enumerate(answers)
    ]
    try:
        for worker in workers:
            worker.start()
        found = [_answer(worker, near) for worker, (near, _) in zip(workers, answers, strict=True)]
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        shared.close()
        shared.unlink()
    slowest = np.max([times for times, _, _ in found], axis=0)
    density = float(np.mean([item for _, item, _ in found]))
    return slowest, density, np.concatenate([item for _, _, item in found])


def _answer(worker: BaseProcess, near: Any) -> tuple[np.ndarray, float, np.ndarray]:
    """Wait for what a process found; a dead one has no answer."""
    while not near.poll(0.5):
        if not worker.is_alive() and not near.poll():
            raise RuntimeError(f"a process of the box ended with code {worker.exitcode}")
    return near.recv()


def _work(size, steps, rank, num_processes, name, neighbor, answer) -> None:
    """Step one part of the box, and send what was found."""
    places = np.arange(size[0]) + rank * size[0]
    wave = 0.05 * np.sin(2 * np.pi * places / (size[0] * num_processes))
    box = Box(size=size, velocity=wave)
    shared = SharedMemory(name=name)
    shape = (num_processes, 2, 2, 5, size[1] + 2, size[2] + 2)
    slots = np.ndarray(shape, dtype=float, buffer=shared.buf)
    times = []
    for step in range(steps):
        start = time.perf_counter()
        _exchange(box, slots, step % 2, rank, neighbor if num_processes > 1 else None)
        box.update()
        times.append(time.perf_counter() - start)
    answer.send((np.array(times[max(steps // 10, 1) :]), *box.means()))
    del slots
    shared.close()


def _exchange(
    box: Box,
    slots: np.ndarray,
    turn: int,
    rank: int,
    neighbor: Any,
) -> None:
    """Hand faces over and take the neighbor's; alone (None), a part is its own neighbor."""
    left, right = box.faces()
    if neighbor is None:
        box.take(right, left)
        return
    slots[rank, turn, 0], slots[rank, turn, 1] = left, right
    neighbor.send_bytes(b"k")
    neighbor.recv_bytes()
    other = slots[1 - rank, turn]
    box.take(other[1], other[0])


def core_s_per_site() -> float:
    """Return the seconds of a site's update in a box that the caches hold, on one process."""
    box = Box(size=(8, 8, 96), velocity=np.zeros(8))
    times = []
    for _ in range(300):
        start = time.perf_counter()
        box.update()
        times.append(time.perf_counter() - start)
    return float(np.median(times[100:])) / (8 * 8 * 96)


def triad_bytes_per_s(num_processes: int) -> float:
    """Return the memory bandwidth of one of several processes that stream at once, one thread each.

    Args:
        num_processes: processes.

    Returns:
        Bytes per second, the mean over processes.
    """
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(num_processes)
    with contextlib.closing(context.Queue()) as found:
        workers = [
            context.Process(target=_stream, args=(together, found)) for _ in range(num_processes)
        ]
        for worker in workers:
            worker.start()
        rates = [found.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
    return float(np.mean(rates))


def _stream(together, found) -> None:
    """Time the calibration's triad while the others do the same."""
    # Torch takes seconds to load, and the processes of a box do not need it.
    import torch

    from steelyard.catalog.probes import memory
    from steelyard.catalog.probes.timing import host_clock

    torch.set_num_threads(1)
    memory.stream(device="cpu", quick=True, clock=host_clock)
    together.wait(timeout=60)
    samples, moved = memory.stream(device="cpu", quick=False, clock=host_clock)
    found.put(moved / samples.median_s)
