"""The benchmark of the proxy: its two C programs, small runs in front of them, and its arithmetic."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.proxy import build, targets, workloads
from loadtest.bench.proxy.build import Tools
from loadtest.bench.proxy.measure import Bench, Effort, Sample
from loadtest.bench.proxy.processes import ProcessError, Processes, use_of
from loadtest.bench.proxy.results import goals, ratios, table_of
from loadtest.bench.proxy.targets import DIRECT

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
W1, W2, W5 = (workloads.chosen(name)[0] for name in ("W1", "W2", "W5"))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    if build.compiler() is None:
        pytest.skip("NO C COMPILER: the benchmark of the proxy is not tested here")
    return build.tools(tmp_path_factory.mktemp("home") / "bench")


def test_the_programs_are_compiled_anew_when_their_source_changes(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(build, "SOURCES", sources)
    made_at = tools.load.stat().st_mtime_ns
    assert build.tools(tools.load.parent) == tools
    assert tools.load.stat().st_mtime_ns == made_at
    with (sources / "load.c").open("a") as source:
        source.write("// changed\n")
    again = build.tools(tools.load.parent)
    assert again.mock == tools.mock
    assert again.load != tools.load
    assert again.load.exists()


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    with pytest.raises(build.CannotBuildError, match="install one"):
        build.tools(tmp_path)


def test_what_the_compiler_says_of_a_bad_source_is_passed_on(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(build, "SOURCES", sources)
    (sources / "mock.c").write_text("int main(void) { return nonsense; }")
    with pytest.raises(build.CannotBuildError, match="nonsense"):
        build.tools(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("workload", [W1, W2, W5], ids=lambda workload: workload.name)
def test_every_request_of_a_small_run_is_answered_and_counted(tools: Tools, workload: workloads.Workload) -> None:
    proxies = [DIRECT, *targets.chosen("floor,ours")]
    samples = Bench(tools, Effort(rounds=1, requests=12, warmup_s=0), lambda line: None).run(workload, proxies)
    expected = ["direct", "ours"] if workload is W5 else ["direct", "floor", "ours"]
    assert [sample.target for sample in samples] == expected
    for sample in samples:
        assert sample.errors == {"wrong_status": 0, "incomplete": 0, "broken": 0, "unfinished": 0}
        assert (sample.requests, sample.ok, sample.decodes) == (12, 12, 12)
        assert sample.prefills == (0 if sample.target == "direct" or workload is W5 else 12)
        assert sample.events == 12 * workload.events
        assert sample.ttft_p50_ms is not None
        assert (sample.rss_mb > 0) == (sample.target != "direct")


def stream(events: int, *, done: bool = True, cut: int = 0, pieces: int = 1) -> bytes:
    """A streamed answer. events: with [DONE]. cut: bytes missing at its end. pieces: HTTP chunks per event."""
    texts = [b'data: {"n":%d}\n\n' % number for number in range(events - done)] + [b"data: [DONE]\n\n"] * done
    chunks = []
    for text in texts:
        size = -(-len(text) // pieces)
        chunks += [text[at : at + size] for at in range(0, len(text), size)]
    whole = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    return whole[: len(whole) - cut]


@contextmanager
def pod_that_says(answer: bytes, *, at_a_time: int) -> Iterator[int]:
    """Answers every request with these bytes, so many at a time; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):  # the client hangs up once it has seen enough
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.recv(65536)
                for at in range(0, len(answer), at_a_time):
                    connection.sendall(answer[at : at + at_a_time])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def load(tools: Tools, port: int, tmp_path: Path, events: int) -> dict[str, Any]:
    (tmp_path / "body").write_bytes(b"{}")
    command = [tools.load, "--port", str(port), "--body", tmp_path / "body", "--requests", "1", "--events", str(events)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=10).stdout)
    return found


@pytest.mark.parametrize("at_a_time", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        pytest.param(stream(5), "ok", id="complete"),
        pytest.param(stream(5, pieces=3), "ok", id="events in pieces"),
        pytest.param(stream(4), "incomplete", id="an event is missing"),
        pytest.param(stream(6), "incomplete", id="an event too many"),
        pytest.param(stream(5, done=False), "incomplete", id="no [DONE]"),
        pytest.param(stream(5, cut=5), "broken", id="no last chunk"),
        pytest.param(stream(5, cut=40), "broken", id="cut in the middle"),
        pytest.param(HEAD + b"zz\r\n", "broken", id="no chunk size"),
        pytest.param(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", "wrong_status", id="refused"),
        pytest.param(HEAD.replace(b"200 OK", b"500 No") + b"0\r\n\r\n", "wrong_status", id="failed"),
    ],
)
def test_the_load_client_sees_what_is_wrong_with_a_stream(
    tools: Tools, tmp_path: Path, answer: bytes, verdict: str, at_a_time: int
) -> None:
    with pod_that_says(answer, at_a_time=at_a_time) as port:
        found = load(tools, port, tmp_path, events=5)
    kinds = ("ok", "wrong_status", "incomplete", "broken", "unfinished")
    assert {kind: found[kind] for kind in kinds} == {kind: int(kind == verdict) for kind in kinds}


def test_the_mock_counts_the_same_prompt_tokens_on_both_legs(tools: Tools, tmp_path: Path) -> None:
    messages = '[{"role":"user","content":"a \\"quoted\\" ] } word \\\\"}]'
    tokens = []
    with Processes(tmp_path) as processes:
        port = processes.start("mock", [tools.mock]).await_port(r"^(\d+)$")
        for rest in ("", ',"kv_transfer_params":{"do_remote_decode":true}'):
            body = f'{{"messages":{messages},"max_tokens":3{rest}}}'.encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(head + body)
                answer = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")[2])
            assert answer["choices"][0]["message"]["content"] == "token token token"
            assert bool(answer["kv_transfer_params"]) == bool(rest)
            tokens.append(answer["usage"]["prompt_tokens"])
    assert tokens == [len(messages) // 4 + 1] * 2


def test_cpu_time_of_a_tree_holds_that_of_children_that_have_ended(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.15: pass"
    script = (
        f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
        "print(7, flush=True)\ntime.sleep(60)"
    )
    with Processes(tmp_path) as processes:
        process = processes.start("parent", [sys.executable, "-c", script])
        assert process.await_port(r"^(\d+)$") == 7
        assert use_of(process.popen.pid).cpu_s >= 0.14


def test_processes_are_gone_after_a_failure_even_those_that_do_not_want_to(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)"
    )
    with suppress(ZeroDivisionError), Processes(tmp_path, grace_s=0.2) as processes:
        process = processes.start("stubborn", [sys.executable, "-c", stubborn])
        process.await_port(r"^(\d)$")
        _ = 1 / 0
    assert process.popen.returncode == -signal.SIGKILL


def test_a_process_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("bad", [sys.executable, "-c", "raise SystemExit('no luck')"])
        with pytest.raises(ProcessError, match=r"(?s)bad ended with status 1.*no luck"):
            process.await_port(r"^(\d+)$")


def test_nothing_is_left_after_ctrl_c(tools: Tools, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "loadtest.bench",
        "proxy",
        "--workloads",
        "W1",
        "--targets",
        "floor",
        "--seconds",
        "60",
    ]
    home = {**os.environ, "LOADTEST_VLLM_HOME": str(tools.load.parent.parent), "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        while len(ours := descendants(running.pid)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(ours) >= 4, "two mocks, the floor and the load client"
        running.send_signal(signal.SIGINT)
        assert "everything is ended" in running.communicate(timeout=10)[1]
    finally:
        running.kill()
    assert running.returncode == 130
    deadline = time.monotonic() + 20
    while (left := [process for process in ours if runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert list(tmp_path.glob("ppd-bench-*")) == []


def runs(process: int) -> bool:
    """Not when it has ended and its new parent, the machine's first process, has yet to notice."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def descendants(process: int) -> list[int]:
    found = [process]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found[1:]


SAMPLE = Sample(
    target="ours",
    workload="W3-1000",
    seconds=2.0,
    requests=100,
    ok=100,
    errors={"wrong_status": 0, "incomplete": 0, "broken": 0, "unfinished": 0},
    events=6700,
    reads=3350,
    ttft_p50_ms=30.0,
    ttft_p99_ms=90.0,
    gap_p50_ms=20.0,
    gap_p99_ms=40.0,
    cpu_us=201_000.0,
    system_us=100_500.0,
    rss_mb=50.0,
    prefills=100,
    decodes=100,
)
DIRECT_SAMPLE = replace(SAMPLE, target="direct", ttft_p50_ms=1.0, ttft_p99_ms=2.0, gap_p99_ms=22.0, cpu_us=0.0)


def test_figures_are_medians_over_rounds_and_differences_are_of_the_same_round() -> None:
    ours = [replace(SAMPLE, ttft_p50_ms=ttft, cpu_us=cpu) for ttft, cpu in ((10.0, 67e3), (30.0, 201e3), (20.0, 134e3))]
    direct = [replace(DIRECT_SAMPLE, ttft_p50_ms=ttft) for ttft in (1.0, 25.0, 2.0)]
    figures = table_of([*ours, *direct])["W3-1000"]["ours"]
    assert (figures.us_per_event, figures.us_per_request) == (20.0, 1340.0)
    assert figures.ttft_p50_ms == 20.0
    assert figures.added_ttft_p50_ms == 9.0
    assert figures.requests_per_s == 50.0
    assert figures.events_per_read == 2.0


def test_goals_are_judged_by_ratios_within_the_run() -> None:
    router = replace(SAMPLE, target="vllm-router", cpu_us=268_000.0, rss_mb=90.0, ttft_p99_ms=80.0)
    floor = replace(SAMPLE, target="floor", cpu_us=100_500.0)
    table = table_of([SAMPLE, router, floor, DIRECT_SAMPLE])
    found = {goal.words: (goal.measured, goal.met) for goal in goals(table)}
    assert found == {
        "W3-1000: failed requests": (0.0, True),
        "W3-1000: share on the wrong path": (0.0, True),
        "W3-1000: CPU, of vllm-router's": (0.75, True),
        "W3-1000: added TTFT P50 below vllm-router's, ms": (29.0, False),
        "W3-1000: added TTFT P99 below vllm-router's, ms": (88.0, False),
        "W3-1000: RSS, of vllm-router's": (50 / 90, False),
        "W3-1000: CPU, of the floor's": (2.0, False),
        "W3-1000: added to the P99 gap, ms": (18.0, False),
    }
    assert ratios(table)["W3-1000"]["ours"] == {
        "cpu_to_vllm-router": 0.75,
        "rss_to_vllm-router": 50 / 90,
        "cpu_to_floor": 2.0,
        "rss_to_floor": 1.0,
    }


def test_w3_names_both_of_its_sizes_and_unknown_names_are_refused() -> None:
    assert [each.name for each in workloads.chosen("w3,W1,W3-200")] == ["W3-200", "W3-1000", "W1"]
    with pytest.raises(ValueError, match="no workload 'W9'"):
        workloads.chosen("W9")
    with pytest.raises(ValueError, match="no target 'nginx'"):
        targets.chosen("ours,nginx")


@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda workload: workload.name)
def test_a_body_is_json_of_about_the_size_it_should_have(workload: workloads.Workload) -> None:
    body = workload.body()
    assert 0.9 * workload.body_bytes <= len(body) <= 1.1 * workload.body_bytes
    assert body.count(workloads.MARK.encode()) == 1
    assert json.loads(body)["max_tokens"] == workload.tokens
