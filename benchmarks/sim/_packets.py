"""A network of packets: queues first in, first out, and a window per flow as in DCTCP."""

from collections import deque

import numpy as np

from steelyard.sim import EventLoop
from steelyard.sim.network import Network, RoutedFlows

__all__ = ["PacketNetwork"]

_ECN_GAIN = 1 / 16


class PacketNetwork:
    """Sends pieces of flows packet by packet.

    A host takes a packet of each of its connections in turn, as network cards do with queue pairs;
    a switch serves each queue in order, and marks a packet that meets a long one. A sender keeps a
    window of packets under way: it grows by a packet per window, and shrinks by half the marked
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
        # Of a host's own link, connections that may send; of others, packets.
        self._queues = [deque() for _ in range(network.num_links)]
        self._busy = [False] * network.num_links
        self._is_host = (network.source < network.num_hosts).tolist()
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
        self._waits = [False] * count
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
        """Return the packets that fill the loop of each piece's path: senders start at its rate."""
        found = []
        for path in self._paths:
            latency = sum(self._latency_s[link] for link in path)
            serve = [self._serve_s[link] for link in path]
            found.append(float(np.ceil((2 * latency + sum(serve)) / max(serve))))
        return found

    def _send(self, piece: int) -> None:
        """Let a piece take its turns at its host, if the window allows and it does not already."""
        if self._waits[piece] or not self._may_send(piece):
            return
        self._waits[piece] = True
        self._queue(self._paths[piece][0], piece)

    def _may_send(self, piece: int) -> bool:
        """Say whether a piece has a packet left and room in its window."""
        return self._unsent[piece] > 0 and self._under_way[piece] < int(self._window[piece])

    def _queue(self, link: int, item) -> None:
        """Queue a packet, or at a host's link a piece, and begin to serve if nothing is."""
        self._queues[link].append(item)
        if not self._busy[link]:
            self._busy[link] = True
            serve = self._served_host if self._is_host[link] else self._served
            self.loop.after(self._serve_s[link], lambda: serve(link))

    def _served_host(self, link: int) -> None:
        """Send a packet of the piece whose turn it is, and put the piece behind the others."""
        piece = self._queues[link].popleft()
        self._unsent[piece] -= 1
        self._under_way[piece] += 1
        self._waits[piece] = self._may_send(piece)
        if self._waits[piece]:
            self._queues[link].append(piece)
        self._pass_on(link, piece, 0, False)
        self._next(link, self._served_host)

    def _served(self, link: int) -> None:
        """Pass a packet on, and begin with the next."""
        piece, hop, marked = self._queues[link].popleft()
        self._pass_on(link, piece, hop, marked)
        self._next(link, self._served)

    def _next(self, link: int, serve) -> None:
        """Serve what is queued next, if anything."""
        if self._queues[link]:
            self.loop.after(self._serve_s[link], lambda: serve(link))
        else:
            self._busy[link] = False

    def _pass_on(self, link: int, piece: int, hop: int, marked: bool) -> None:
        """Bring a packet to its next link, or to its target and the news of that back."""
        delay = self._latency_s[link]
        if hop + 1 < len(self._paths[piece]):
            self.loop.after(delay, lambda: self._arrive(piece, hop + 1, marked))
            return
        self._finish[piece] = self.loop.now_s + delay
        back = sum(self._latency_s[part] for part in self._paths[piece])
        self.loop.after(delay + back, lambda: self._acknowledge(piece, marked))

    def _arrive(self, piece: int, hop: int, marked: bool) -> None:
        """Queue a packet at a switch's link of its path."""
        link = self._paths[piece][hop]
        full = len(self._queues[link]) >= self._mark_at
        self._queue(link, (piece, hop, marked or full))

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
