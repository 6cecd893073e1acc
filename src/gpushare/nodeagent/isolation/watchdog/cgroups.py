"""The container of a process, from ``/proc/PID/cgroup``, which a process without permissions on cgroups cannot change. Pure.

The kubelet's paths with cgroup v1 and v2 and its two drivers, below any other directory (kind, k3s) and seen from any cgroup
namespace (then ``kubepods`` may be missing):

    4:memory:/kubepods/burstable/pod2f1c…/0a1b…                                                        cgroupfs
    0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2f1c_….slice/cri-containerd-0a1b….scope   systemd
    0::/../../kubepods-pod2f1c_….slice/crio-0a1b….scope
    0::/system.slice/containerd.service/kubepods-pod2f1c_….slice:cri-containerd:0a1b…      a runtime without systemd
"""

import re
from typing import Final, NamedTuple

_POD: Final = re.compile(r"(?P<ours>[a-z-]*kubepods-(?:[a-z]+-)?)?pod(?P<uid>[^/]+?)(?P<systemd>\.slice)?")
#: UIDs from API servers, and from kubelets for static pods.
_UID: Final = re.compile(r"[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}")
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_PART: Final = re.compile(r"[^/:]+")
_VERSION_2: Final = "0::"


class Owner(NamedTuple):
    """The owner of a process: UID of its pod and ID of its container, both empty outside of Kubernetes."""

    pod_uid: str = ""
    container_id: str = ""


#: A process of the node itself.
OUTSIDE: Final = Owner()


def owner(cgroup: str) -> Owner:
    """Parse the text of ``/proc/PID/cgroup``."""
    for line in cgroup.splitlines():
        found = _owner(line)
        if found is not None:
            return found[0]
    return OUTSIDE


def container_cgroup(cgroup: str) -> tuple[Owner, str] | None:
    """The container in the text of ``/proc/PID/cgroup``, and its cgroup v2 path below the root (the process may be further below).
    ``None`` without that hierarchy or outside of containers."""
    for line in cgroup.splitlines():
        found = _owner(line) if line.startswith(_VERSION_2) else None
        if found is not None and found[0].container_id:
            return found[0], line[len(_VERSION_2) : found[1]]
    return None


def _owner(line: str) -> tuple[Owner, int] | None:
    """The owner of the cgroup in a line, and where the part of its path ends that names the container."""
    path_at = line.find(":", line.find(":") + 1) + 1
    pod: re.Match[str] | None = None
    for part in _PART.finditer(line, path_at):
        if pod is None:
            match = _POD.fullmatch(part[0])
            if match is not None and (_UID.fullmatch(match["uid"]) or "kubepods" in line):
                pod = match
        elif match := _CONTAINER.fullmatch(part[0]):
            return Owner(_uid(pod), match[1]), part.end()
    return None if pod is None else (Owner(_uid(pod)), len(line))


def _uid(pod: re.Match[str]) -> str:
    # systemd has dashes for levels, so the kubelet writes those of a UID as underscores there.
    return pod["uid"].replace("_", "-") if pod["systemd"] else pod["uid"]
