"""What can be made to go wrong with the mock in C, seen by a client with a socket."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadtest.bench.proxy import build
from loadtest.bench.proxy.processes import Process, Processes

MARK = "talk-0000007-001"
MESSAGES = [
    {"role": "user", "content": "soak:talk-0000007-000 hello"},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": f"soak:{MARK} and now?"},
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if build.compiler() is None:
        pytest.skip("NO C COMPILER: the mock is not tested here")
    return build.tools(tmp_path_factory.mktemp("home") / "bench").mock


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


def start(processes: Processes, program: Path, port: int = 0) -> tuple[Process, int]:
    options = ("--port", str(port), "--gap-us", "2000", "--echo", "soak:")
    process = processes.start("mock", [program, *options])
    return process, process.await_port(r"^(\d+)$")


def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[bytes, bool]:
    """What comes until the pod hangs up, and whether it ends with a reset."""
    head = f"{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    came = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        try:
            while piece := connection.recv(65536):
                came += piece
        except ConnectionResetError:
            return came, True
    return came, False


def chat(port: int, *, stream: bool = False, max_tokens: int = 50, **more: object) -> tuple[bytes, bool]:
    asked = {"messages": MESSAGES, "max_tokens": max_tokens, "stream": stream, **more}
    return ask(port, "POST", "/v1/chat/completions", json.dumps(asked).encode())


def wish(max_tokens: int, *, stream: bool) -> bytes:
    """A request that is sent by hand."""
    body = json.dumps({"messages": MESSAGES, "max_tokens": max_tokens, "stream": stream}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def order(port: int, query: str) -> None:
    assert ask(port, "POST", f"/fault?{query}")[0].startswith(b"HTTP/1.1 200"), query


def struck(port: int) -> int:
    return int(json.loads(ask(port, "DELETE", "/fault")[0].partition(b"\r\n\r\n")[2])["struck"])


def test_an_answer_begins_with_the_last_mark_of_its_prompt(processes: Processes, program: Path) -> None:
    _, port = start(processes, program)
    whole = json.loads(chat(port, max_tokens=2)[0].partition(b"\r\n\r\n")[2])
    assert whole["choices"][0]["message"]["content"] == f"{MARK}token token"
    streamed = chat(port, stream=True, max_tokens=2)[0]
    events = [json.loads(line[6:]) for line in streamed.split(b"\n") if line.startswith(b"data: {")]
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == f"{MARK}token token"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("kind", "head", "resets"),
    [
        ("refuse", b"HTTP/1.1 503", False),
        ("reset", b"", True),
        ("close", b"", False),
        ("garbage", b"HTTQ/9", False),
        ("late&ms=1", b"HTTP/1.1 200", False),
        ("cut&ms=5", b"HTTP/1.1 200", True),
        ("bad_chunk&ms=5", b"HTTP/1.1 200", False),
        ("give_up&ms=5", b"HTTP/1.1 ", False),
    ],
)
def test_so_many_requests_meet_a_fault_and_the_next_does_not(
    processes: Processes, program: Path, kind: str, head: bytes, resets: bool, stream: bool
) -> None:
    _, port = start(processes, program)
    order(port, f"kind={kind}&times=2")
    for _ in range(2):
        came, reset = chat(port, stream=stream)
        assert (came[: max(len(head), 1)] if came else came) == head
        assert reset is resets
        assert (b"[DONE]" in came or b'"finish_reason":"length"' in came) is (
            kind.startswith("late") or (kind.startswith("give_up") and stream)
        )
        assert (b"zz\r\n" in came) is kind.startswith("bad_chunk")
        assert (b'"InternalServerError"' in came) is kind.startswith("give_up")
    came, reset = chat(port, stream=stream)
    assert came.startswith(b"HTTP/1.1 200")
    assert not reset
    assert struck(port) == 2


def test_a_pod_that_hangs_is_silent_until_the_fault_is_over(processes: Processes, program: Path) -> None:
    _, port = start(processes, program)
    order(port, "kind=hang")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as waiting:
        waiting.sendall(wish(1, stream=False))
        waiting.settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        assert chat(port)[0].startswith(b"HTTP/1.1 200"), "others are served meanwhile"
        assert struck(port) == 1
        waiting.settimeout(10)
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)


def test_a_client_that_hangs_up_while_its_fault_is_to_come_leaves_the_pod_well(
    processes: Processes, program: Path
) -> None:
    process, port = start(processes, program)
    for kind in ("hang", "late&ms=30", "cut&ms=30"):
        order(port, f"kind={kind}&times=3")
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as leaving:
                leaving.sendall(wish(9, stream=True))
        with suppress(ConnectionResetError):
            chat(port, max_tokens=40, stream=True)
        struck(port)
        assert chat(port)[0].startswith(b"HTTP/1.1 200")
    process.check()


def test_forgetful_pods_answer_without_kv_transfer_params(processes: Processes, program: Path) -> None:
    _, port = start(processes, program)
    order(port, "kind=forget")
    given = []
    for _ in range(2):
        answer = json.loads(chat(port, kv_transfer_params={"do_remote_decode": True})[0].partition(b"\r\n\r\n")[2])
        given.append(answer["kv_transfer_params"])
    assert given[0] is None
    assert given[1]["do_remote_prefill"] is True


def test_a_pod_that_was_killed_comes_back_on_its_port_as_another_engine(processes: Processes, program: Path) -> None:
    first, port = start(processes, program)
    _, decode = start(processes, program)

    def params() -> dict[str, object]:
        answer = chat(port, kv_transfer_params={"do_remote_decode": True})[0].partition(b"\r\n\r\n")[2]
        found: dict[str, object] = json.loads(answer)["kv_transfer_params"]
        return found

    old = params()
    assert chat(decode, kv_transfer_params=old)[0].startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", port)):  # what the port still knows must not keep it
        first.popen.send_signal(signal.SIGKILL)
        first.popen.wait()
    _, again = start(processes, program, port)
    assert again == port
    new = params()
    assert new["remote_engine_id"] != old["remote_engine_id"]
    assert chat(decode, kv_transfer_params=old)[0].startswith(b"HTTP/1.1 500"), "its blocks are gone"
    assert chat(decode, kv_transfer_params=new)[0].startswith(b"HTTP/1.1 200")


def test_a_fault_that_does_not_exist_is_refused(processes: Processes, program: Path) -> None:
    _, port = start(processes, program)
    assert ask(port, "POST", "/fault?kind=cute")[0].startswith(b"HTTP/1.1 400")
