"""What a cluster could leave behind on this machine, and what it has left."""

import os
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.cluster import cgroups, record
from tests.e2e.cluster.cluster import Cluster

SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/rp_filter",
    "net/bridge/bridge-nf-call-iptables",
)
"""What the kubelet, kube-proxy and CNI plugins are known to set."""

_BUILDER: Final = "/buildah/storage/"
_SPACES: Final = ("mnt", "net", "pid", "uts", "ipc", "cgroup")


@dataclass(frozen=True, slots=True)
class Traces:
    """Existing traces; each entry a line that describes it."""

    found: frozenset[str]

    def since(self, before: "Traces", *, of_others: Iterable[str] = ()) -> set[str]:
        """New entries, except those that name one of ``of_others``: other clusters come and go."""
        others = list(of_others)
        return {line for line in self.found - before.found if not any(name in line for name in others)}

    def gone_since(self, before: "Traces", *, of_others: Iterable[str] = ()) -> set[str]:
        """Entries that are gone; cgroups of whatever else runs on the machine are excluded."""
        gone = before.since(self, of_others=of_others)
        return {line for line in gone if not line.startswith("cgroup ") or f"/{cgroups.ROOT}/" in line}


def look() -> Traces:
    """Look at this machine."""
    # Images may be built at the same time, for another step of the pipeline.
    mounts = (line for line in Path("/proc/self/mounts").read_text().splitlines() if _BUILDER not in line)
    lines = [f"mount {line}" for line in mounts]
    lines += [f"link {name}" for name in os.listdir("/sys/class/net")]
    lines += [f"route {line.strip()}" for line in _output("ip", "route", "show", "table", "all").splitlines()]
    lines += [f"rule {line.strip()}" for line in _output("nft", "list", "ruleset").splitlines()]
    lines += [f"named netns {line}" for line in _output("ip", "netns", "list").splitlines()]
    for hierarchy in cgroups.hierarchies():
        # Below a folder of another program, groups come and go with what that runs; a kubelet of ours
        # that escaped would create one at the top.
        tops = [entry for entry in hierarchy.path.iterdir() if entry.is_dir()]
        lines += [f"cgroup {top}/" for top in tops]
        lines += [f"cgroup {folder}/" for folder, *_ in os.walk(hierarchy.path / cgroups.ROOT)]
    lines += [f"state {path}" for path in record.STATES.parent.glob("gpushare-e2e*/*")]
    for name in SYSCTLS:
        path = Path("/proc/sys") / name
        if path.exists():
            lines.append(f"sysctl {name} = {path.read_text().strip()}")
    return Traces(frozenset(lines))


@dataclass(slots=True)
class Spaces:
    """The namespaces that a cluster's machines live in, to be looked for after it has gone."""

    group: str
    ids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, cluster: Cluster) -> "Spaces":
        """Those of every machine of the cluster."""
        machines = [cluster.control, *(node.machine for node in cluster.nodes)]
        spaces = {os.readlink(f"/proc/{m.init.pid}/ns/{space}") for m in machines for space in _SPACES}
        return cls(record.group(cluster.state), spaces)

    def held(self) -> set[str]:
        """Processes that are still in one of them. Namespace IDs are reused, so processes of other clusters
        are excluded.
        """
        found = set()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            for space in _SPACES:
                try:
                    if os.readlink(process / "ns" / space) in self.ids and not self._of_another(process):
                        found.add(f"{process.name} in {space}: {(process / 'stat').read_text()[:60]}")
                except OSError:
                    continue
        return found

    def _of_another(self, process: Path) -> bool:
        groups = (process / "cgroup").read_text()
        return f"/{cgroups.ROOT}/" in groups and f"/{cgroups.ROOT}/{self.group}/" not in groups


def other_clusters(own_slot: int | None, own_state: Path) -> set[str]:
    """The traces of other clusters on this machine. They come and go: check before as well.

    ``own_slot`` is ``None`` if it is not known yet; links are not listed then.
    """
    own = record.group(own_state)
    # Nothing of a cluster is in the folder for temporary files, but other programs may mount something there.
    names = {f" {tempfile.gettempdir()}/"}
    if own_slot is not None:
        links = (f"gpushare{slot}" for slot in range(20))
        names |= {link for link in links if not f"gpushare{own_slot}".startswith(link)}
        # A slot that was given back may have been taken by the next cluster already.
        names |= {f"gpushare{own_slot}"} if own_slot in _slots_of_others(own_state) else set()
    folders = {path.parent for path in record.STATES.parent.glob("gpushare-e2e*/*")}
    names |= {f"state {folder}/" for folder in folders if folder != own_state.parent}
    for hierarchy in cgroups.hierarchies():
        top = hierarchy.path / cgroups.ROOT
        if top.is_dir():
            names |= {
                f"/{cgroups.ROOT}/{entry.name}/"
                for entry in top.iterdir()
                if entry.is_dir() and entry.name != own
            }
    return names


def _slots_of_others(own_state: Path) -> set[int]:
    slots = set()
    for state in record.STATES.parent.glob("gpushare-e2e*/*"):
        if state != own_state:
            with suppress(OSError, ValueError, KeyError):
                slots.add(record.read(state).slot)
    return slots


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
