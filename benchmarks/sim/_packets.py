"""A network of packets: queues first in, first out, and a window per flow as in DCTCP."""

from collections import deque

import numpy as np

from steelyard.sim import EventLoop
from steelyard.sim.network import Network, RoutedFlows

__all__ = ["PacketNetwork"]

_ECN_GAIN = 1 / 16


class PacketNetwork:
    """Sends pieces of flows packet by packet.

    Every link serves its queue in order; a packet that meets a long queue is marked. A sender keeps
    a window of packets under way: it grows by a packet per window, and shrinks by half the marked
    fraction. Nothing is lost: queues have room for all windows. Acknowledgements take the latency
    of the way back.

    Source: Alizadeh et al. 2010 (DCTCP).
    """

    def __init__(self, network: Network, *, packet_bytes: float = 4096.0) -> None:
        """Make empty queues.

        Args:
            network: the graph.
            packet_bytes: bytes of every packet.
        """
        self.network = network
        self.packet_bytes = packet_bytes
        self.loop = EventLoop()
        self._queues = [deque() for _ in range(network.num_links)]
        self._busy = [False] * network.num_links
        self._serve_s = (packet_bytes / network.bytes_per_s).tolist()
        self._latency_s = network.latency_s.tolist()
        self._mark_at = 16  # packets; DCTCP asks for a sixth of what a loop of the path holds

    def run(self, routed: RoutedFlows) -> np.ndarray:
        """Send all pieces on single paths, and return when each flow's last packet arrived, s."""
        self._paths = [hops[hops >= 0].tolist() for hops in routed.hops]
        count = len(routed)
        packets = np.ceil(routed.size_bytes / self.packet_bytes).astype(int)
        self._unsent, self._unacked = packets.tolist(), packets.tolist()
        self._under_way, self._window = [0] * count, self._loops()
        self._marks, self._seen, self._alpha = [0] * count, [0] * count, [0.0] * count
        self._finish = np.zeros(count)
        order = np.random.default_rng(0).permutation(count)
        for piece in order.tolist():
            begin = float(routed.flows.start_s[routed.flow[piece]])
            self.loop.at(begin, lambda piece=piece: self._send(piece))
        self.loop.run()
        last = np.zeros(len(routed.flows))
        np.maximum.at(last, routed.flow, self._finish)
        return last

    def _loops(self) -> list[float]:
        """Return the packets that fill each path's loop: senders begin at line rate."""
        found = []
        for path in self._paths:
            latency = sum(self._latency_s[link] for link in path)
            serve = [self._serve_s[link] for link in path]
            found.append(float(np.ceil((2 * latency + sum(serve)) / max(serve))))
        return found

    def _send(self, piece: int) -> None:
        """Send as many packets as the window allows."""
        while self._unsent[piece] and self._under_way[piece] < int(self._window[piece]):
            self._unsent[piece] -= 1
            self._under_way[piece] += 1
            self._arrive(piece, 0, False)

    def _arrive(self, piece: int, hop: int, marked: bool) -> None:
        """Queue a packet at a link of its path."""
        link = self._paths[piece][hop]
        queue = self._queues[link]
        queue.append((piece, hop, marked or len(queue) >= self._mark_at))
        if not self._busy[link]:
            self._busy[link] = True
            self.loop.after(self._serve_s[link], lambda: self._served(link))

    def _served(self, link: int) -> None:
        """Pass a packet on, and begin with the next."""
        piece, hop, marked = self._queues[link].popleft()
        delay = self._latency_s[link]
        if hop + 1 < len(self._paths[piece]):
            self.loop.after(delay, lambda: self._arrive(piece, hop + 1, marked))
        else:
            self._finish[piece] = self.loop.now_s + delay
            back = sum(self._latency_s[part] for part in self._paths[piece])
            self.loop.after(delay + back, lambda: self._acknowledge(piece, marked))
        if self._queues[link]:
            self.loop.after(self._serve_s[link], lambda: self._served(link))
        else:
            self._busy[link] = False

    def _acknowledge(self, piece: int, marked: bool) -> None:
        """Count an acknowledgement, adapt the window, and send on."""
        self._under_way[piece] -= 1
        self._seen[piece] += 1
        self._marks[piece] += marked
        if self._seen[piece] >= self._window[piece]:
            share = self._marks[piece] / self._seen[piece]
            alpha = self._alpha[piece]
            self._alpha[piece] = alpha + _ECN_GAIN * (share - alpha)
            if self._marks[piece]:
                self._window[piece] *= 1 - self._alpha[piece] / 2
            else:
                self._window[piece] += 1
            self._window[piece] = max(self._window[piece], 1.0)
            self._seen[piece] = self._marks[piece] = 0
        self._send(piece)
