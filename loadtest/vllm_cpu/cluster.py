"""Some pods as one thing: started together, remembered in one directory, stopped together.

Rule of this room: whatever goes wrong between `start` and `stop`, no process is left behind. A cluster
of a test is guarded (it dies with its owner); one of the command line is not, its state file finds it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from loadtest.vllm_cpu import cores, state
from loadtest.vllm_cpu.environment import Report, require, say
from loadtest.vllm_cpu.errors import StateError
from loadtest.vllm_cpu.guard import Guard
from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.pod import START_SECONDS, Pod, start_pods
from loadtest.vllm_cpu.ports import Reservation
from loadtest.vllm_cpu.spec import PORTS_PER_POD, Handover, PodSpec, Role

AT_ONCE = 4


class Cluster:
    """Pods of one directory. Use `start` for new ones, `attach` for those of a state file."""

    def __init__(self, layout: Layout, directory: Path) -> None:
        self.directory = directory
        self.pods: list[Pod] = []
        self._layout = layout
        self._guard: Guard | None = None
        self._reservation: Reservation | None = None

    @classmethod
    def start(
        cls,
        prefill: int = 1,
        decode: int = 2,
        plain: int = 0,
        *,
        kv_gib: int = 1,
        bidirectional: Collection[Role] = (),
        max_model_len: int = 8192,
        engine_arguments: Sequence[str] = (),
        connector_options: Mapping[str, object] | None = None,
        handover: Handover = Handover.NIXL,
        directory: Path | None = None,
        layout: Layout | None = None,
        guarded: bool = True,
        at_once: int = AT_ONCE,
        timeout_seconds: float = START_SECONDS,
        report: Report = say,
    ) -> Cluster:
        """Start pods named `prefill-0`, `decode-0`, `plain-0`, …; returns when all are healthy.

        `directory` takes logs and state file (default: a new temporary one). `engine_arguments` are
        appended to every pod's command line, `connector_options` go into `kv_connector_extra_config` of
        prefill and decode pods, `bidirectional` names the roles that read KV back, `handover` chooses the
        connector. Raises
        `EnvironmentMissingError`, `StateError` when the directory's pods still run, and `PodError` (all
        stopped again) when a pod does not get healthy within `timeout_seconds` of its start.
        """
        layout = require(layout)
        cluster = cls(layout, directory or Path(tempfile.mkdtemp(prefix="vllm-pods-")))
        cluster.directory.mkdir(parents=True, exist_ok=True)
        cluster._refuse_if_up()
        counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.PLAIN: plain}
        cluster._reservation = Reservation(PORTS_PER_POD * sum(counts.values()))
        ports = iter(cluster._reservation.ports)
        for role, count in counts.items():
            for number in range(count):
                spec = PodSpec(
                    name=f"{role}-{number}",
                    role=role,
                    http_port=next(ports),
                    side_channel_port=next(ports),
                    event_port=next(ports),
                    replay_port=next(ports),
                    kv_gib=kv_gib,
                    bidirectional=role in bidirectional,
                    max_model_len=max_model_len,
                    engine_arguments=tuple(engine_arguments),
                    connector_options=dict(connector_options or {}),
                    handover=handover,
                )
                cluster._add(spec, cluster.directory / f"{spec.name}.log")
        cluster._guard = Guard() if guarded else None
        try:
            start_pods(cluster.pods, at_once, timeout_seconds, report)
            cores.unbind(cluster.pods)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def attach(cls, directory: Path, layout: Layout | None = None) -> Cluster:
        """The pods of a state file, whether they still run or not; no pods when there is no file."""
        cluster = cls(layout or Layout.default(), directory)
        for spec, log, leader in state.read(directory):
            cluster._add(spec, log).leader = leader
        return cluster

    def of_role(self, role: Role) -> list[Pod]:
        return [pod for pod in self.pods if pod.role is role]

    def __getitem__(self, name: str) -> Pod:
        """The pod of that name; `KeyError` when there is none."""
        return {pod.name: pod for pod in self.pods}[name]

    def stop(self) -> None:
        """Stop all pods and forget them; logs stay. May be called again."""
        for pod in self.pods:
            pod.request_stop()
        for pod in self.pods:
            pod.stop()
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        if self._reservation is not None:
            self._reservation.release()
        state.state_file(self.directory).unlink(missing_ok=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _add(self, spec: PodSpec, log: Path) -> Pod:
        pod = Pod(spec, self._layout, log, self._remember)
        self.pods.append(pod)
        return pod

    def _remember(self) -> None:
        state.write(self.directory, self.pods)
        if self._guard is not None:
            self._guard.watch(pod.pid for pod in self.pods if pod.pid is not None)

    def _refuse_if_up(self) -> None:
        running = [pod.name for pod in Cluster.attach(self.directory, self._layout).pods if pod.alive()]
        if running:
            raise StateError(f"{', '.join(running)} of {self.directory} still up: `down` first")
