"""The Dockerfile: what it promises, read from the file itself; and the rehearsal that runs it (`make rehearse`)."""

from __future__ import annotations

import http.server
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.docker.dependencies import dependencies
from deploy.docker.dockerfile import Dockerfile, DockerfileError, Stage, read
from deploy.docker.rehearse import Builder
from gateway.ops import healthcheck
from gateway.version import VERSION
from tests.deploy.kustomize import containers, pod_spec, render

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole() -> Dockerfile:
    return read(ROOT / "Dockerfile")


@pytest.fixture(scope="module")
def build(whole: Dockerfile) -> Stage:
    return whole.stages[0]


@pytest.fixture(scope="module")
def final(whole: Dockerfile) -> Stage:
    return whole.stages[-1]


def test_nothing_needs_a_shell(whole: Dockerfile) -> None:
    for stage in whole.stages:
        for one in stage.instructions:
            if one.word in ("RUN", "CMD", "ENTRYPOINT", "SHELL"):
                assert one.word != "SHELL"
                assert one.argv
                assert not {"sh", "bash", "/bin/sh", "/bin/bash"} & set(one.argv)
    assert whole.stages[-1].check()[:2] == ["python", "-m"]


def test_the_last_stage_runs_nothing_and_takes_all_from_the_first(build: Stage, final: Stage) -> None:
    words = [one.word for one in final.instructions]
    assert "RUN" not in words
    assert {one.flags.get("from") for one in final.instructions if one.word == "COPY"} == {build.name}


def test_the_base_image_can_be_pinned_by_digest_for_all_stages(whole: Dockerfile) -> None:
    assert list(whole.arguments) == ["PYTHON_IMAGE"]
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}"] * len(whole.stages)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", whole.arguments["PYTHON_IMAGE"])


def test_a_change_of_the_code_installs_no_dependency_again(build: Stage) -> None:
    done = [f"{one.word} {one.rest}" for one in build.instructions]
    installs = next(number for number, line in enumerate(done) if "runtime.txt" in line and '"-r"' in line)
    code = [n for n, line in enumerate(done) if line.startswith(("COPY gateway", "COPY lut", "COPY loadtest"))]
    assert len(code) == 3
    assert installs < min(code)
    assert "requirements.lock" in done[installs]


def test_it_runs_as_the_user_that_the_manifests_name(final: Stage) -> None:
    (gateway,) = [m for m in render(ROOT / "deploy/k8s/base") if m["kind"] == "Deployment"]
    security = pod_spec(gateway)["securityContext"]
    user = final.last("USER")
    assert user is not None
    assert user.rest == f"{security['runAsUser']}:{security['runAsGroup']}"
    owned = [one.rest.split()[-1] for one in final.instructions if one.flags.get("chown") == user.rest]
    mounted = {mount["mountPath"] for mount in containers(gateway)[0]["volumeMounts"]}
    assert owned == ["/var/lib/ppd-gateway"]
    assert set(owned) <= mounted


def test_command_and_ports_are_those_of_the_manifests(final: Stage) -> None:
    (gateway,) = [m for m in render(ROOT / "deploy/k8s/base") if m["kind"] == "Deployment"]
    entry, command, ports, stop = (final.last(word) for word in ("ENTRYPOINT", "CMD", "EXPOSE", "STOPSIGNAL"))
    assert entry is not None
    assert command is not None
    assert ports is not None
    assert stop is not None
    assert entry.argv == ["ppd-gateway"]
    assert command.argv == containers(gateway)[0]["args"]
    assert ports.rest.split() == [str(port["containerPort"]) for port in containers(gateway)[0]["ports"]]
    assert stop.rest == "SIGTERM"


def test_the_version_is_that_of_the_project(final: Stage) -> None:
    version = next(one for one in final.instructions if one.word == "ARG" and one.rest.startswith("VERSION="))
    assert version.rest == f"VERSION={VERSION}"
    label = final.last("LABEL")
    assert label is not None
    assert 'image.version="${VERSION}"' in label.rest
    kustomization = yaml.safe_load((ROOT / "deploy/k8s/base/kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization["images"] == [{"name": "ppd-gateway", "newName": "ppd-gateway", "newTag": VERSION}]


def test_the_dependencies_are_the_projects_and_those_of_the_extras() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    assert dependencies(text, ["dns"]) == [*project["dependencies"], *project["optional-dependencies"]["dns"]]
    with pytest.raises(KeyError):
        dependencies(text, ["no-such-extra"])


def test_only_what_is_copied_reaches_the_builder(build: Stage) -> None:
    builder = Builder(Path("/nowhere"), ROOT)
    for name in ("tests/net/world.py", ".git/config", "docs/metrics.md", "gateway/__pycache__/x.pyc", "deploy/k8s/x"):
        assert builder.ignores(Path(name)), name
    copied = [one.rest.split()[:-1] for one in build.instructions if one.word == "COPY"]
    for name in (source for sources in copied for source in sources):
        assert not builder.ignores(Path(name)), name
        assert (ROOT / name).exists()


# ---- the reader and the rehearsal themselves


@pytest.mark.parametrize(
    ("text", "said"),
    [("FROM a\nRUN pip install x", "so it needs a shell"), ("RUN []", "RUN before FROM")],
)
def test_a_file_that_cannot_be_rehearsed_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    (tmp_path / ".dockerignore").touch()
    with pytest.raises(DockerfileError, match=said):
        Builder(tmp_path, tmp_path).build(read(tmp_path / "Dockerfile").stages)


SMALL = """# a comment
ARG BASE=python:3
FROM ${BASE} AS build
ENV GREETING=hello \\
    OTHER=x
WORKDIR /build
COPY a.txt sub/b.txt ./
COPY tree ./tree
RUN ["python", "-c", "import os, pathlib; pathlib.Path('/build/said').write_text(os.environ['GREETING'])"]
FROM ${BASE}
COPY --from=build /build /opt/app
WORKDIR /opt/app
USER 10001:10001
ENTRYPOINT ["python"]
"""


def test_the_instructions_of_a_small_file_are_carried_out(tmp_path: Path) -> None:
    context, work = tmp_path / "context", tmp_path / "work"
    for name in ("a.txt", "sub/b.txt", "tree/kept.txt", "tree/__pycache__/lost.pyc", "other.txt"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name, encoding="utf-8")
    (context / ".dockerignore").write_text("*\n!a.txt\n!sub/b.txt\n!tree\n**/__pycache__\n", encoding="utf-8")
    text = SMALL.replace("'/build/said'", "'said'")
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    work.mkdir()
    image = Builder(work, context).build(read(context / "Dockerfile").stages)
    found = {path.relative_to(image.root).as_posix() for path in image.root.rglob("*") if path.is_file()}
    assert found == {"opt/app/a.txt", "opt/app/b.txt", "opt/app/tree/kept.txt", "opt/app/said"}
    assert image.place("said").read_text(encoding="utf-8") == "hello"
    assert image.user == (10001, 10001)
    assert (work / "build" / "build" / "said").exists(), "a path is the same in both stages"


# ---- the health check


class _Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def answering() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_the_health_check_by_port_and_by_url(answering: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPD_PORT", str(answering))
    monkeypatch.delenv("PPD_TLS_CERT", raising=False)
    assert healthcheck.main([]) == 0
    assert healthcheck.main([f"http://127.0.0.1:{answering}/ready"]) == 1


def test_the_health_check_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck.main(["http://127.0.0.1:9/health"]) == 1
    assert "http://127.0.0.1:9/health: " in capsys.readouterr().err
    assert healthcheck.main(["nonsense"]) == 1


def test_the_health_check_of_a_gateway_with_tls() -> None:
    assert healthcheck.address([], {"PPD_TLS_CERT": "x", "PPD_PORT": "1"}) == "https://127.0.0.1:1/health"
    assert healthcheck.address([], {}) == "http://127.0.0.1:8000/health"


def test_the_health_check_loads_no_more_than_it_needs() -> None:
    program = "import sys, gateway.ops.healthcheck\nprint(sorted(n for n in sys.modules if n.startswith('gateway')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gateway', 'gateway.ops', 'gateway.ops.healthcheck']"
