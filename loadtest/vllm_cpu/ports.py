"""Free ports that stay ours.

Rule of this room: the kernel picks. A reserved port is held by a bound socket that never listens: with
SO_REUSEADDR on both sides a pod can bind it as well, but the kernel hands it to nobody else, neither now
nor between a pod's death and its restart.
"""

from __future__ import annotations

import socket
from types import TracebackType

HOST = "127.0.0.1"


class Reservation:
    """`count` distinct ports, held until `release` or the end of this process."""

    def __init__(self, count: int) -> None:
        self._sockets = [_bound_socket() for _ in range(count)]
        self.ports = tuple(int(holder.getsockname()[1]) for holder in self._sockets)

    def release(self) -> None:
        for holder in self._sockets:
            holder.close()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _bound_socket() -> socket.socket:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind((HOST, 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder
