"""The far end of the link probe: a process of its own that answers messages.

It is run as a file and needs the standard library only. Its arguments are the port of a listening
socket on this host, the path of a file to map, and the file's size. Over the socket each message is
an 8-byte length and that many bytes, answered by one byte, until the socket closes. Then each byte
on standard input is answered by one on standard output: "p" at once, "c" after copying the mapped
file.
"""

import mmap
import os
import socket
import sys
from pathlib import Path


def serve_socket(port: int) -> None:
    """Answer messages over TCP until the peer closes."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(2**20))
        while len(header := link.recv(8, socket.MSG_WAITALL)) == 8:
            left = int.from_bytes(header, "little")
            while left:
                left -= link.recv_into(buffer, min(left, len(buffer)))
            link.send(b"k")


def serve_pipe(path: str, size: int) -> None:
    """Answer bytes over the pipes until standard input closes."""
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), size) as shared:
        view = memoryview(shared)
        copy = memoryview(bytearray(size))
        while command := os.read(0, 1):
            if command == b"c":
                copy[:] = view
            os.write(1, b"k")
        view.release()


if __name__ == "__main__":
    serve_socket(int(sys.argv[1]))
    serve_pipe(sys.argv[2], int(sys.argv[3]))
