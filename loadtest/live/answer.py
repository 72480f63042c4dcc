"""What became of one request.

Rule of this room: a fault is a class from a short list, so that many can be counted; what a server wrote stays out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

CONNECT = "connect"
RESET = "reset"
MALFORMED = "malformed"
INCOMPLETE = "incomplete"
TIMEOUT_FIRST = "timeout_first_token"
TIMEOUT = "timeout"
NOT_SENT = "not_sent"
FAULTS = {
    CONNECT: "no connection",
    RESET: "the connection broke before the end",
    MALFORMED: "bytes that are no HTTP or no event",
    INCOMPLETE: "ended well, but without a finish reason and [DONE]",
    TIMEOUT_FIRST: "no first token in time",
    TIMEOUT: "no end in time",
    NOT_SENT: "not sent: an earlier turn of the conversation failed",
    "error_…": "an error event within the stream, by its type",
    "http_…": "a status other than 200",
}
"""In words. The last two are families."""


@dataclass(slots=True)
class Answer:
    """Moments are seconds of the caller's clock; None: did not happen. times: of every event with new text.

    sent_s: the request's turn to be sent came (before a connection was opened). output_tokens: as the server counts,
    else its events. detail: for the operator's eyes, one line, never the server's words.
    """

    sent_s: float
    end_s: float
    fault: str | None = None
    detail: str = ""
    status: int = 0
    first_s: float | None = None
    last_s: float | None = None
    times: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int | None = None
    output_tokens: int = 0
    cached_tokens: int | None = None
    has_usage: bool = False
    text: str = ""
    resent: bool = False
