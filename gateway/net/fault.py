"""How a pod fails.

Rule of this room: every way a pod can fail before it has answered becomes one PodFault with a word for the log.
"""

from __future__ import annotations


class PodFault(Exception):
    """A pod failed.

    word: "connect", "reset", "timeout", "malformed"; "local" where it was the gateway that could not connect.
    process_gone: True when nothing listens there any more.
    reached: False when the pod certainly has not seen the request.
    """

    def __init__(self, word: str, detail: str, *, process_gone: bool = False, reached: bool = True) -> None:
        super().__init__(f"{word}: {detail}")
        self.word = word
        self.detail = detail
        self.process_gone = process_gone
        self.reached = reached
