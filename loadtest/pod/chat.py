"""`/v1/chat/completions`, from a run to JSON.

Rule of this room: one function per shape vLLM sends (vllm/entrypoints/openai/chat_completion/serving.py); nothing here
waits.
"""

import uuid

from loadtest.pod.answer import Answer, Delta
from loadtest.pod.run import Run
from loadtest.pod.shapes import Json, chat_logprobs, head, prompt_details, usage, without_nulls


def full(run: Run, *, fingerprint: str, block_size: int) -> Json:
    """The answer in one piece (`chat_completion_full_generator`)."""
    wanted = run.wanted
    counts = usage(run.prompt_tokens, run.completion_tokens)
    return {
        **head(run, "chat.completion"),
        "choices": [_choice(run, answer) for answer in run.answers],
        "service_tier": None,
        "system_fingerprint": fingerprint,
        "usage": counts
        | {
            "prompt_tokens_details": prompt_details(run, run.cached_tokens(0), run.created_cache_tokens(0, block_size)),
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": list(wanted.prompts[0]) if wanted.return_token_ids else None,
        "prompt_text": wanted.prompt_texts[0] if wanted.body.get("return_prompt_text") else None,
        "kv_transfer_params": run.params.get(0),
        "ec_transfer_params": None,
        "metrics": None,
    }


def _choice(run: Run, answer: Answer) -> Json:
    wanted = run.wanted
    message: Json = {
        "role": "assistant",
        "content": answer.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    finish = answer.finish
    if wanted.tool_name is not None:
        call = {"name": wanted.tool_name, "arguments": answer.text}
        message |= {
            "content": "",
            "tool_calls": [{"id": _call_id(), "type": "function", "function": call}],
        }
        if wanted.tool_choice == "required" and finish == "stop":
            finish = "tool_calls"
    return {
        "index": answer.index,
        "message": message | {"reasoning": None},
        "logprobs": chat_logprobs(answer.token_ids, wanted.logprobs),
        "finish_reason": finish,
        "stop_reason": answer.stop_reason,
        "token_ids": list(answer.token_ids) if wanted.return_token_ids else None,
        "routed_experts": None,
    }


def _call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


def role_chunk(run: Run, index: int) -> Json:
    """The first chunk of each choice."""
    wanted = run.wanted
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return _chunk(run, choice, completion_tokens=0) | {
        "prompt_token_ids": list(wanted.prompts[0]) if wanted.return_token_ids else None,
        "prompt_text": wanted.prompt_texts[0] if wanted.body.get("return_prompt_text") else None,
    }


def delta_chunk(run: Run, answer: Answer, delta: Delta, *, fingerprint: str, first: bool) -> Json:
    """Some more text, and the end of a choice with its last text."""
    wanted = run.wanted
    body: Json = {"content": delta.text}
    finish = delta.finish
    if wanted.tool_name is not None:
        body = _tool_delta(answer, wanted.tool_name, delta.text, first=first)
        if wanted.tool_choice == "required" and finish == "stop":
            finish = "tool_calls"
    choice: Json = {
        "index": answer.index,
        "delta": body,
        "logprobs": chat_logprobs(delta.token_ids, wanted.logprobs),
        "finish_reason": finish,
    }
    if finish is not None:
        choice["stop_reason"] = delta.stop_reason
    choice["token_ids"] = list(delta.token_ids) if wanted.return_token_ids else None
    chunk = _chunk(run, choice, completion_tokens=len(answer.token_ids))
    if finish is not None and not wanted.include_usage:
        chunk["system_fingerprint"] = fingerprint
    return chunk


def _tool_delta(answer: Answer, name: str, text: str, *, first: bool) -> Json:
    """A call's name comes alone; its arguments follow, one token late (vLLM's Hermes parser)."""
    if first:
        answer.held = text
        call: Json = {"id": _call_id(), "type": "function", "index": 0, "function": {"name": name}}
        return {"content": None, "tool_calls": [call]}
    text, answer.held = answer.held + text, ""
    if not text:
        return {}
    return {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}


def usage_chunk(run: Run, *, fingerprint: str, block_size: int) -> Json:
    """The last chunk, when `stream_options.include_usage` asks for it."""
    details = prompt_details(run, run.cached_tokens(0), run.created_cache_tokens(0, block_size))
    counts = usage(run.prompt_tokens, run.completion_tokens) | {"prompt_tokens_details": details}
    chunk: Json = without_nulls(
        {**head(run, "chat.completion.chunk"), "choices": [], "usage": counts, "system_fingerprint": fingerprint}
    )
    return chunk


def _chunk(run: Run, choice: Json, *, completion_tokens: int) -> Json:
    chunk = head(run, "chat.completion.chunk") | {"choices": [choice]}
    if run.wanted.continuous_usage:
        chunk["usage"] = usage(run.prompt_tokens, completion_tokens) | {"completion_tokens_details": None}
    return chunk
