"""The endpoints whose requests are routed, and how each is read.

Rule of this room: one table, endpoint → dialect. A new API is a new row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.wire.answers_messages import ANTHROPIC
from gateway.wire.answers_responses import RESPONSES
from gateway.wire.contract import Api
from gateway.wire.dialects import OPENAI, Dialect
from gateway.wire.fields import Fields
from gateway.wire.prompts import Prompt, read_messages, read_prompt
from gateway.wire.prompts_anthropic import read_anthropic
from gateway.wire.prompts_responses import read_responses


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to read a request of one API.

    prompt_field: the field whose size says how long the prompt is.
    """

    api: Api
    prompt_field: str
    read_prompt: Callable[[Fields], Prompt]
    dialect: Dialect = OPENAI


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(Api.CHAT, "messages", read_messages),
    "/v1/completions": Endpoint(Api.COMPLETIONS, "prompt", read_prompt),
    "/v1/messages": Endpoint(Api.MESSAGES, "messages", read_anthropic, ANTHROPIC),
    "/v1/responses": Endpoint(Api.RESPONSES, "input", read_responses, RESPONSES),
}
