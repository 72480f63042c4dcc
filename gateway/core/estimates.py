"""Estimates of what is only known afterwards.

Rule of this room: each estimate is a small class that learns from what the pods report.
"""

from __future__ import annotations

from gateway.core.conversations import Kind, Recognition

START_BYTES_PER_TOKEN = 4.0
_WEIGHT_OF_NEWS = 0.05


class BytesPerToken:
    """Body bytes per prompt token, learned per model as an exponential average."""

    def __init__(self, max_models: int = 256) -> None:
        self._ratio: dict[str, float] = {}
        self._max_models = max_models

    def tokens(self, model: str, body_bytes: int) -> int:
        """The expected prompt tokens of a body of that size (at least 1)."""
        return round(body_bytes / self._ratio.get(model, START_BYTES_PER_TOKEN)) or 1

    def learn(self, model: str, body_bytes: int, prompt_tokens: int) -> None:
        """A pod counted so many prompt tokens for a body of that size."""
        if prompt_tokens <= 0:
            return
        before = self._ratio.get(model)
        if before is None:
            if len(self._ratio) >= self._max_models:
                return
            before = START_BYTES_PER_TOKEN
        self._ratio[model] = before + _WEIGHT_OF_NEWS * (body_bytes / prompt_tokens - before)


def prompt_tokens(recognition: Recognition, model: str, prompt_bytes: int, sizes: BytesPerToken) -> int:
    """The expected tokens of a prompt, of which the new ones matter most.

    Where the prompt goes on from the conversation's last one, only what was added is estimated: the bytes it grew by,
    for the last answer and for what is new. Guessing the whole prompt instead would put the error of thousands of
    known tokens on a few new ones. What is shared is known, and something is always new.
    """
    conversation, shared = recognition.conversation, recognition.shared_tokens
    if shared and recognition.kind is Kind.REPEAT:
        return shared
    grown_bytes = prompt_bytes - conversation.prompt_bytes
    if conversation.prompt_bytes and grown_bytes > 0 and 0 < conversation.prompt_tokens <= shared:
        return max(shared + 1, conversation.prompt_tokens + sizes.tokens(model, grown_bytes))
    return max(shared + 1, sizes.tokens(model, prompt_bytes))
