"""Long work on the event loop in small steps.

Rule of this room: whoever has work that comes in pieces lets others have the loop between two of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

AT_A_TIME_S = 0.001
"""How long it goes on before others have their turn."""


async def joined(pieces: Iterator[bytes]) -> bytes:
    """All pieces as one."""
    found = []
    began = time.perf_counter()
    for piece in pieces:
        found.append(piece)
        if time.perf_counter() - began > AT_A_TIME_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return b"".join(found)
