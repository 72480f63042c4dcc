"""What the gateway's log says of failures: which pods a failed request met, and every fault it saw.

Rule of this room: a line of a request that went well is passed over at the cost of one search.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable

from loadtest.soak.ledger import Noticed

_FAULT = re.compile(r"fault=(\S+) id=(\S+) pod=(\S+)")
_ID = re.compile(r" id=(\S+) ")
_PODS = re.compile(r"\b(?:prefill|holder|answered_by)=(http\S+)")
_COUNTS = re.compile(r"^soak tasks=(\d+) blocks=(\d+)$")
_BUG = ("fault=bug", "Traceback", "never retrieved", "was destroyed")


class GatewayLog:
    """Feed it with `take`. met: pods by the id of a request that failed; bugs: lines that tell of one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[asyncio.Future[tuple[int, int]]] = []
        self.began_s = clock()
        self.met: defaultdict[str, set[str]] = defaultdict(set)
        self.noticed: list[Noticed] = []
        self.bugs: list[str] = []

    def next_counts(self) -> asyncio.Future[tuple[int, int]]:
        """Gets the tasks and the blocks of the next line that has them."""
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return answer

    def take(self, lines: bytes) -> None:
        """Some whole lines."""
        for line in lines.split(b"\n"):
            if b" outcome=ok " not in line:
                self._look_into(line.decode(errors="replace"))

    def _look_into(self, line: str) -> None:
        if any(word in line for word in _BUG):
            self.bugs.append(line.strip())
        if found := _FAULT.search(line):
            kind, request, pod = found.groups()
            self.noticed.append(Noticed(kind, pod, request, self._clock() - self.began_s))
            if pod != "-":
                self.met[request].add(pod)
        elif " outcome=" in line and (named := _ID.search(line)):
            self.met[named[1]].update(_PODS.findall(line))
        elif (counted := _COUNTS.match(line)) and self._waiting:
            self._waiting.pop(0).set_result((int(counted[1]), int(counted[2])))
