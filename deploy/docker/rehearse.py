"""Runs the instructions of the Dockerfile without Docker: `python -m deploy.docker.rehearse`.

Each stage gets a folder in place of its root file system, absolute paths are moved below it, and the commands are those
of the file. Then the image's command is started as the image's user with everything read-only but what that user owns,
in front of a simulated pod; it must get ready, answer a chat, pass its own health check, and end with 0 at SIGTERM.

Rule of this room: nothing here knows what the Dockerfile does; an instruction it cannot carry out is an error.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from deploy.docker.dockerfile import DockerfileError, Instruction, Stage, expand, read

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
NOBODY = 65534
QUIET = {"LABEL", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
"""What changes no file; the last five are used when the container starts."""


@dataclass
class Image:
    """A stage as far as it was built. root: its file system. user: of its processes, (uid, gid)."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    folder: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    user: tuple[int, int] | None = None

    def place(self, path: str) -> Path:
        """Where a path of the image really is."""
        return self.root / (self.folder / path).relative_to("/")

    def command(self, argv: Sequence[str]) -> list[str]:
        """With absolute paths moved, and `python` of the base image as the one this runs on."""
        moved = [str(self.place(word)) if self._is_ours(word) else word for word in argv]
        paths = self.variables.get("PATH", "").split(":")
        found = [self.place(folder) / moved[0] for folder in paths if folder]
        own = next((path for path in found if path.exists()), None)
        if own is not None:
            moved[0] = str(own)
        elif moved[0] == "python":
            moved[0] = base_python()
        return moved

    def _is_ours(self, word: str) -> bool:
        return word.startswith("/") and not word.startswith(str(self.root))

    def environment(self) -> dict[str, str]:
        """What its processes see: its own variables, and how pip is to reach its index here."""
        pip = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_"))}
        proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
        paths = [str(self.place(path)) for path in self.variables.get("PATH", "").split(":") if path]
        path = ":".join([*paths, os.environ.get("PATH", os.defpath)])
        return {**pip, **proxies, **self.variables, "PATH": path, "HOME": "/nonexistent", "LANG": "C.UTF-8"}


@cache
def base_python() -> str:
    """In place of the base image's: the one this runs on, or another that users other than root can reach too."""
    own = str(getattr(sys, "_base_executable", None) or sys.executable)
    test = "import sys, ensurepip, venv, pip; sys.exit(sys.version_info < (3, 11))"
    for name in (own, "/usr/local/bin/python3", "/usr/bin/python3"):
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            subprocess.run([name, "-c", test], check=True, cwd="/", stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
        except (OSError, subprocess.CalledProcessError):
            continue
        return name
    return own


class Builder:
    """Builds the stages of a Dockerfile in `work`. context: the folder that COPY takes from."""

    def __init__(self, work: Path, context: Path) -> None:
        self._work = work
        self._context = context
        self._ignored = _ignore_rules(context)
        self.images: dict[str, Image] = {}

    def build(self, stages: Sequence[Stage]) -> Image:
        """All of them; gives the last."""
        image = Image(self._work)
        for number, stage in enumerate(stages):
            image = Image(self._work / (stage.name or f"stage{number}"))
            image.root.mkdir(mode=0o755)
            self.images[stage.name or str(number)] = image
            for one in stage.instructions:
                print(f"{one.word} {one.rest}", flush=True)
                self._carry_out(one, image)
        return image

    def _carry_out(self, one: Instruction, image: Image) -> None:
        if one.word in ("ENV", "ARG"):
            image.variables |= one.pairs(image.variables)
        elif one.word == "WORKDIR":
            image.folder = image.folder / expand(one.rest, image.variables)
            image.place(".").mkdir(parents=True, exist_ok=True)
        elif one.word == "USER":
            uid, _, gid = one.rest.partition(":")
            image.user = int(uid), int(gid or uid)
        elif one.word == "RUN":
            environment = {**image.environment(), "HOME": str(self._work)}
            subprocess.run(image.command(one.argv), cwd=image.place("."), env=environment, check=True)
        elif one.word == "COPY":
            self._copy(one, image)
        elif one.word not in QUIET:
            raise DockerfileError(f"{one.word}: not known to the rehearsal")

    def _copy(self, one: Instruction, image: Image) -> None:
        *sources, target = one.rest.split()
        into = image.place(target)
        for source in sources:
            if "from" in one.flags:
                self._take(self.images[one.flags["from"]].place(source), into)
            else:
                at = self._context / source
                goal = into / at.name if target.endswith("/") and at.is_file() else into
                if not self._copy_file_or_tree(at, goal):
                    raise DockerfileError(f"COPY {source}: nothing of it is in the context (.dockerignore?)")
            if "chown" in one.flags and os.geteuid() == 0:
                uid, gid = (int(part) for part in one.flags["chown"].split(":"))
                for path in (into, *into.rglob("*")):
                    os.lchown(path, uid, gid)

    def _copy_file_or_tree(self, source: Path, target: Path) -> int:
        copied = 0
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file() and not self.ignores(path.relative_to(self._context)):
                goal = target / path.relative_to(source) if source.is_dir() else target
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, goal)
                copied += 1
        return copied

    def _take(self, source: Path, target: Path) -> None:
        """From another stage: a path is the same in both there, so what is moved is still found where it was."""
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        source.symlink_to(target)

    def ignores(self, path: Path) -> bool:
        ignored = False
        for pattern, lets_in in self._ignored:
            parts = [path, *path.parents]
            if any(_matches(part, pattern) for part in parts if part != Path()):
                ignored = not lets_in
        return ignored


def _ignore_rules(context: Path) -> list[tuple[str, bool]]:
    lines = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [(rule.lstrip("!"), rule.startswith("!")) for rule in rules]


def _matches(path: Path, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.name, pattern[3:])
    return len(path.parts) == len(Path(pattern).parts) and fnmatch.fnmatchcase(path.as_posix(), pattern)


def seal(image: Image) -> None:
    """Nothing can be written but what belongs to the image's user; without root nothing at all, as all is ours."""
    for path in (image.root, *image.root.rglob("*")):
        if path.is_symlink():
            continue
        if os.geteuid() == 0 and path.stat().st_uid != 0:
            continue
        path.chmod(path.stat().st_mode & ~0o222 | (0o555 if path.is_dir() else 0o444))


def unseal(folder: Path) -> None:
    """So that it can be removed."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How a process is kept from writing where the image's user may not. before: goes before its command."""

    words: str
    before: Sequence[str] = ()
    options: Mapping[str, object] = field(default_factory=dict)


def bounds_of(image: Image) -> Bounds:
    """The best that can be had here. The image's user is no use where it cannot reach the interpreter."""
    if os.geteuid() != 0 or image.user is None:
        return Bounds(f"as user {os.geteuid()}")
    as_user = {"user": image.user[0], "group": image.user[1], "extra_groups": []}
    try:
        subprocess.run(image.command(["python", "-c", ""]), check=True, **as_user)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            return Bounds("as root, so that READ-ONLY FILES WERE NOT PROVEN")
        bare = (setpriv, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")
        return Bounds(f"as root without capabilities, as user {image.user[0]} cannot reach {sys.executable}", bare)
    return Bounds(f"as user {image.user[0]}", options=as_user)


@contextmanager
def process(argv: Sequence[str], image: Image | None = None, **more: object) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block; with an image: one of its container."""
    options: dict[str, object] = dict(more)
    if image is not None:
        options |= {"cwd": image.place("."), "env": {**image.environment(), **dict(more.get("env", {}) or {})}}  # type: ignore[call-overload]
        way = bounds_of(image)
        options |= way.options
        argv = [*way.before, *image.command(argv)]
    running = subprocess.Popen(argv, text=True, **options)  # type: ignore[call-overload]
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


def start_and_check(stage: Stage, image: Image) -> None:
    """Start the container, use it, stop it. Raises AssertionError."""
    entry, arguments = stage.last("ENTRYPOINT"), stage.last("CMD")
    assert entry is not None
    assert arguments is not None
    config = image.place(arguments.argv[-1])
    config.parent.mkdir(parents=True, exist_ok=True)
    pod_argv = [sys.executable, "-m", "loadtest.pod", "--role", "decode", "--profile", "instant"]
    with process(pod_argv, cwd=ROOT, stdout=subprocess.PIPE) as pod:
        assert pod.stdout is not None
        url = pod.stdout.readline().strip()
        config.write_text(f'decode = ["{url}"]\npolicy = "local"\nselftest = false\n', encoding="utf-8")
        seal(image)
        print(f"starting {bounds_of(image).words}", flush=True)
        assert not _can_write(image), "the file system of the image is not read-only"
        port = _free_port()
        with process([*entry.argv, *arguments.argv], image, env={"PPD_PORT": str(port)}) as gateway:
            _until_ready(gateway, f"http://127.0.0.1:{port}/ready")
            _chat(f"http://127.0.0.1:{port}/v1/chat/completions")
            health = image.command(stage.check())
            environment = {**image.environment(), "PPD_PORT": str(port)}
            assert subprocess.run(health, env=environment, cwd=image.place("."), check=False).returncode == 0
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(PATIENCE_S) == 0, "the gateway did not end well"
            print("HEALTHCHECK after the end:", flush=True)
            assert subprocess.run(health, env=environment, cwd=image.place("."), check=False).returncode == 1


def _can_write(image: Image) -> bool:
    """Whether a process of the container can put a file where the program is, or change one."""
    folder = image.place(image.variables["PATH"].split(":")[0])
    script = "import sys; open(sys.argv[1], 'a').close()"
    for path in (folder / "new", folder / "ppd-gateway"):
        with process(["python", "-c", script, str(path)], image, stderr=subprocess.DEVNULL) as trying:
            if trying.wait(PATIENCE_S) == 0:
                return True
    return False


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _until_ready(gateway: subprocess.Popen[str], url: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        assert gateway.poll() is None, f"the gateway ended with {gateway.returncode}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} was not ready within {PATIENCE_S:g} s")


def _chat(url: str) -> None:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]


def rehearse(work: Path) -> float:
    """Everything, in an empty folder that the image's user may look into; gives the seconds it took to build."""
    began = time.monotonic()
    stages = read(ROOT / "Dockerfile").stages
    image = Builder(work, ROOT).build(stages)
    built_s = time.monotonic() - began
    try:
        start_and_check(stages[-1], image)
    finally:
        unseal(work)
    return built_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.docker.rehearse", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the folder behind and say where it is")
    parser.add_argument("--quiet", action="store_true", help="show what the commands say only if something fails")
    options = parser.parse_args()
    if options.quiet:
        words = [sys.executable, "-m", "deploy.docker.rehearse", *(["--keep"] if options.keep else [])]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout if done.returncode else done.stdout.splitlines()[-1])
        sys.exit(done.returncode)
    work = Path(tempfile.mkdtemp(prefix="ppd-image-"))
    work.chmod(0o755)
    try:
        built_s = rehearse(work)
        size = sum(path.lstat().st_size for path in (work / "stage1").rglob("*"))
        print(f"ok: built in {built_s:.0f} s, {size / 1e6:.0f} MB on top of the base image")
    finally:
        if options.keep:
            print(work)
        else:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
