"""Pieces that chat and completion answers share: usage and log probabilities.

Rule of this room: key order and nulls are vLLM's (vllm/entrypoints/serve/engine/protocol.py); a key that vLLM
leaves out is left out.
"""

from collections.abc import Sequence
from typing import Any

from loadtest.pod import tokenizer
from loadtest.pod.answer import alternatives
from loadtest.pod.run import Run

Json = dict[str, Any]


def head(run: Run, kind: str) -> Json:
    """The first four fields of every answer and every chunk."""
    return {"id": run.id, "object": kind, "created": run.created, "model": run.wanted.model}


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    """The three counts alone."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def prompt_details(run: Run, cached_tokens: int, created_tokens: int | None) -> Json | None:
    """`prompt_tokens_details`; null without `--enable-prompt-tokens-details`."""
    if not run.prompt_tokens_details:
        return None
    return {
        "cached_tokens": cached_tokens,
        "created_cache_tokens": created_tokens,
        "multimodal_tokens": None,
    }


def without_nulls(value: Any) -> Any:
    """The object without its null fields, at every level (`exclude_none`)."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def chat_logprobs(token_ids: Sequence[int], count: int | None) -> Json | None:
    """`logprobs` of a chat choice: `count` alternatives per token."""
    if count is None:
        return None
    content = []
    for token_id in token_ids:
        ranked = alternatives(token_id, max(1, count))
        entries = [_chat_logprob(other, value) for other, value in ranked]
        content.append({**entries[0], "top_logprobs": entries[:count]})
    return {"content": content}


def _chat_logprob(token_id: int, value: float) -> Json:
    text = tokenizer.token_text(token_id)
    return {"token": text, "logprob": value, "bytes": list(text.encode())}


def completion_logprobs(token_ids: Sequence[int], count: int | None, offset: int) -> Json | None:
    """`logprobs` of a completion choice."""
    if count is None:
        return None
    offsets, values, texts, tops = [], [], [], []
    for token_id in token_ids:
        ranked = alternatives(token_id, max(1, count))
        text = tokenizer.token_text(token_id)
        offsets.append(offset)
        offset += len(text)
        values.append(ranked[0][1])
        texts.append(text)
        tops.append({tokenizer.token_text(other): value for other, value in ranked})
    return {"text_offset": offsets, "token_logprobs": values, "tokens": texts, "top_logprobs": tops}
