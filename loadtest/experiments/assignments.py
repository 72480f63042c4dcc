"""Node assignments: which pods stand there, written as the paper writes them (`4R`, `1P_3D`, `1P_1D_2pD`, `1R_2P_1pD`).

P prefills, R serves conversations whole, D and pD decode. Later turns may stay on a pD, and on a D of a cluster that
has no pD, if the policy says so. D beside pD is strict: all its turns go through P.

Rule of this room: names are read here and nowhere else; the paper's 17 static configurations are rows of one table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.core.pods import Pod, Role
from loadtest.experiments.errors import ExperimentError

_PART = re.compile(r"([1-9][0-9]{0,3})(R|P|D|pD)")
_ORDER = ("R", "P", "D", "pD")
MAX_PODS = 256

STRICT = "it is strict: every turn goes through a prefill pod"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Counts of pods by kind."""

    replicas: int = 0
    prefill: int = 0
    strict: int = 0
    decode: int = 0

    def __str__(self) -> str:
        """As the paper writes it, where D and pD are two kinds."""
        counts = zip((self.replicas, self.prefill, self.strict, self.decode), _ORDER, strict=True)
        return "_".join(f"{count}{kind}" for count, kind in counts if count)

    @property
    def num_pods(self) -> int:
        return self.replicas + self.prefill + self.strict + self.decode

    def pods(self) -> list[Pod]:
        """All of them, up: `r0`, `p0`, `d0` and so on; the strict ones come before the other decode pods."""
        pods = [Pod(f"r{number}", Role.REPLICA, up=True) for number in range(self.replicas)]
        pods += [Pod(f"p{number}", Role.PREFILL, up=True) for number in range(self.prefill)]
        for number in range(self.strict + self.decode):
            direct_off = STRICT if number < self.strict else None
            pods.append(Pod(f"d{number}", Role.DECODE, up=True, direct_off=direct_off))
        return pods


def parse(name: str) -> Cluster:
    """`1P_1D_2pD` → a cluster. `1P_3D` has no pD: its decode pods are not strict. Raises ExperimentError."""
    counts = dict.fromkeys(_ORDER, 0)
    for part in name.split("_"):
        match = _PART.fullmatch(part)
        if match is None or counts[match[2]]:
            raise ExperimentError(f"node assignment {name!r}: write it like 1P_3D, 4R, 1P_1D_2pD or 1R_2P_1pD")
        counts[match[2]] = int(match[1])
    strict, decode = (counts["D"], counts["pD"]) if counts["pD"] else (0, counts["D"])
    cluster = Cluster(counts["R"], counts["P"], strict, decode)
    if cluster.num_pods > MAX_PODS:
        raise ExperimentError(f"node assignment {name!r}: {cluster.num_pods} pods are more than {MAX_PODS}")
    if cluster.replicas + cluster.strict + cluster.decode == 0:
        raise ExperimentError(f"node assignment {name!r}: no pod could answer")
    if (cluster.strict or cluster.decode) and not cluster.prefill:
        raise ExperimentError(f"node assignment {name!r}: decode pods without a prefill pod")
    return cluster


@dataclass(frozen=True, slots=True)
class Static:
    """One of the paper's configurations: pods, and the policy that they come down to. family: the paper's class."""

    name: str
    family: str
    policy: str


PAPER = (
    Static("4R", "replica", "pd"),
    Static("1P_3D", "x=0", "pd"),
    Static("2P_2D", "x=0", "pd"),
    Static("3P_1D", "x=0", "pd"),
    Static("1P_3pD", "x=1", "local"),
    Static("2P_2pD", "x=1", "local"),
    Static("3P_1pD", "x=1", "local"),
    Static("1P_2D_1pD", "partial", "local"),
    Static("1P_1D_2pD", "partial", "local"),
    Static("2P_1D_1pD", "partial", "local"),
    Static("1R_1P_2D", "hybrid", "pd"),
    Static("1R_2P_1D", "hybrid", "pd"),
    Static("2R_1P_1D", "hybrid", "pd"),
    Static("1R_1P_2pD", "hybrid", "local"),
    Static("1R_2P_1pD", "hybrid", "local"),
    Static("2R_1P_1pD", "hybrid", "local"),
    Static("1R_1P_1D_1pD", "hybrid", "local"),
)
"""All 17 of the paper, four pods each."""
