"""The words around the tables: what this is, how the runs compare, how to go on.

Rule of this room: says what is simulated and how the comparison was made, next to the numbers.
"""

from __future__ import annotations

import json
import shlex

from rich.console import Console
from rich.table import Table

from loadtest.demo.access_log import Entry
from loadtest.demo.cluster import MODEL, PODS, PROFILE, Cluster
from loadtest.demo.lateness import BUSY_MS
from loadtest.demo.screen import milliseconds
from loadtest.demo.summary import Change, Run, Summary

NOTE = (
    f"Pods are simulated: a model of a vLLM engine, calibrated to published measurements (profile {PROFILE}), in "
    "real time. No GPU and no language model ran; the gateway, HTTP and the client are real, and times include them."
)


def introduction(console: Console, conversations: int, turns: int) -> None:
    """What is about to happen."""
    prefill = sum(role == "prefill" for role in PODS.values())
    text(console, f"ppd-gateway in front of {prefill} prefill and {len(PODS) - prefill} decode pods. {NOTE}")
    text(console, f"Traffic: {conversations} conversations of {turns} turns at once, the history sent back each turn.")
    console.print()


def starting(console: Console, policy: str) -> None:
    """A cluster is being started."""
    text(console, f"Starting {len(PODS)} pods and a gateway with policy {policy} ...")


def comparison(console: Console, summary: Summary) -> None:
    """Both runs side by side."""
    ppd, pd, changed = summary.ppd, summary.pd, summary.change_percent
    table = Table(title="Summary", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in ("pd", "ppd", "change"):
        table.add_column(heading, justify="right")
    for cells in _lines(pd, ppd, changed):
        table.add_row(*cells)
    console.print(table, highlight=False)
    console.print()
    later = sum(row.turn >= 2 for row in ppd.turns)
    same = (
        "prompts and answers were the same in both, token for token"
        if summary.same_traffic
        else "BUT PROMPTS OR ANSWERS DIFFERED between them, so the runs compare only roughly"
    )
    text(
        console,
        f"Medians over {later} later turns of one run each. The runs went one after the other, each on a gateway and "
        f"pods started for it with empty caches, so neither warmed the other; {same}. A decode pod reads only the "
        "blocks that it lacks, so through P a later turn moves its new tokens, not its history.",
    )
    for run in (ppd, pd):
        if run.timers_late_ms > BUSY_MS:
            late = milliseconds(run.timers_late_ms)
            console.print(
                f"This machine was busy during run {run.policy}: timers were up to {late} ms late (95th percentile), "
                "so its times are longer than they should be, and the change in them is not to be trusted.",
                style="red",
                highlight=False,
            )


def going_on(console: Console, cluster: Cluster) -> None:
    """How to use the gateway that goes on serving."""
    body = {"model": MODEL, "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "Hello there"}]}
    url = cluster.url
    console.print()
    text(console, f"The gateway (policy {cluster.policy}) goes on serving at {url} until Ctrl-C. Try it:")
    lines = (
        "",
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body))}",
        "",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{url}/v1", api_key="none")',
        '  said = [{"role": "user", "content": "Hello there"}]',
        f'  print(client.chat.completions.create(model="{MODEL}", messages=said).choices[0].message.content)',
        "",
        f"Look at it: {cluster.log.admin_url}/ui. Counters: {url}/metrics. Requests that come in are listed here:",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def visitor(console: Console, cluster: Cluster, entry: Entry) -> None:
    """One line for a request of the user's own."""
    pods = [cluster.name_of(url) for url in (entry.prefill, entry.answered_by) if url is not None]
    what = "TTFT" if entry.stream else "whole answer after"
    time = f", {what} {milliseconds(entry.ttft_ms)} ms" if entry.ttft_ms is not None else ""
    text(console, f"  {entry.outcome}: {' → '.join(pods)}{time}; {entry.reason}")


def text(console: Console, line: str) -> None:
    """Plain text, wrapped at the console's width."""
    console.print(line, highlight=False, markup=False)


def _lines(pd: Run, ppd: Run, changed: Change) -> tuple[tuple[str, str, str, str], ...]:
    return (
        (
            "turn 2+ TTFT, median",
            f"{milliseconds(pd.later_turns_ttft_ms)} ms",
            f"{milliseconds(ppd.later_turns_ttft_ms)} ms",
            _percent(changed.later_turns_ttft),
        ),
        (
            "turn 2+ TPOT, median",
            f"{milliseconds(pd.later_turns_tpot_ms)} ms",
            f"{milliseconds(ppd.later_turns_tpot_ms)} ms",
            _percent(changed.later_turns_tpot),
        ),
        (
            "turn 1 TTFT, median (same route)",
            f"{milliseconds(pd.first_turn_ttft_ms)} ms",
            f"{milliseconds(ppd.first_turn_ttft_ms)} ms",
            _percent(changed.first_turn_ttft),
        ),
        ("turn 2+ prompt found in a cache", f"{pd.cached_share:.0%} (P's)", f"{ppd.cached_share:.0%} (D's)", ""),
        (
            "requests at the prefill pod",
            str(pd.prefill_requests),
            str(ppd.prefill_requests),
            _percent(changed.prefill_requests),
        ),
        ("KV transfers from P to D", str(pd.kv_reads), str(ppd.kv_reads), _percent(changed.kv_reads)),
        ("KV bytes from P to D", _size(pd.kv_bytes), _size(ppd.kv_bytes), _percent(changed.kv_bytes)),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{round(value):+d} %"


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
