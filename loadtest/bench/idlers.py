"""Many clients that asked once and now do nothing, in a process of their own.

`python -m loadtest.bench.idlers PORT COUNT ADDRESS`: opens COUNT kept-alive connections from ADDRESS, one question on
each; prints `open COUNT SECONDS`, then, when the server has closed them all, `closed COUNT SHORTEST LONGEST`: the
seconds from a connection's question to its end.
"""

from __future__ import annotations

import resource
import select
import socket
import sys
import time

QUESTION = b"GET /health HTTP/1.1\r\nHost: idle\r\n\r\n"
AT_ONCE = 500
"""Connections that are being opened at a time."""


def raise_limit() -> int:
    """Take all the file descriptors that this process may have; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def open_all(port: int, count: int, address: str) -> list[tuple[socket.socket, float]]:
    """Connect, ask, and wait for every answer; each with the time of its question. Raises OSError where none comes."""
    held: list[tuple[socket.socket, float]] = []
    while len(held) < count:
        fresh = []
        for _ in range(min(AT_ONCE, count - len(held))):
            each = socket.socket()
            # The port is chosen when it is known where to, so that it is free for this pair of addresses.
            each.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            each.bind((address, 0))
            each.connect(("127.0.0.1", port))
            fresh.append((each, time.monotonic()))
            each.sendall(QUESTION)
        for each, _ in fresh:
            answer = b""
            while b'"ok"}' not in answer:
                piece = each.recv(4096)
                if not piece:
                    raise ConnectionError(f"closed after {answer!r}")
                answer += piece
        held += fresh
    return held


def wait_until_cut(held: list[tuple[socket.socket, float]]) -> tuple[float, float]:
    """The shortest and the longest time from a question until the server closed that connection."""
    poll = select.epoll()
    by_number = {each.fileno(): (each, asked_at) for each, asked_at in held}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    lasted = []
    while by_number:
        for number, _ in poll.poll():
            poll.unregister(number)
            each, asked_at = by_number.pop(number)
            lasted.append(time.monotonic() - asked_at)
            each.close()
    return min(lasted), max(lasted)


def main(port: int, count: int, address: str) -> None:
    """See the top."""
    raise_limit()
    began = time.monotonic()
    held = open_all(port, count, address)
    print(f"open {count} {time.monotonic() - began:.3f}", flush=True)
    shortest, longest = wait_until_cut(held)
    print(f"closed {count} {shortest:.3f} {longest:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
