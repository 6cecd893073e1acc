"""Whose is a process? Read from ``/proc/PID/cgroup``, which a process without rights over cgroups cannot change. Pure.

The kubelet's paths, with cgroup v1 and v2, by its two drivers, below whatever other folder (kind, k3s), and seen from
whatever cgroup namespace (then ``kubepods`` may not be in it):

    4:memory:/kubepods/burstable/pod2f1c…/0a1b…                                                        cgroupfs
    0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2f1c_….slice/cri-containerd-0a1b….scope   systemd
    0::/../../kubepods-pod2f1c_….slice/crio-0a1b….scope
    0::/system.slice/containerd.service/kubepods-pod2f1c_….slice:cri-containerd:0a1b…      a runtime without systemd
"""

import re
from typing import Final, NamedTuple

_POD: Final = re.compile(r"(?P<ours>[a-z-]*kubepods-(?:[a-z]+-)?)?pod(?P<uid>[^/]+?)(?P<systemd>\.slice)?")
#: A UID as API servers make them, and as kubelets do for the pods of their own files.
_UID: Final = re.compile(r"[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}")
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_PARTS: Final = re.compile(r"[/:]")


class Owner(NamedTuple):
    """Whom a process belongs to: UID of its pod and ID of its container, both empty outside of Kubernetes."""

    pod_uid: str = ""
    container_id: str = ""


#: A process of the node itself.
OUTSIDE: Final = Owner()


def owner(cgroup: str) -> Owner:
    """What the text of ``/proc/PID/cgroup`` says."""
    for line in cgroup.splitlines():
        parts = _PARTS.split(line.split(":", 2)[-1])
        for at, part in enumerate(parts):
            pod = _POD.fullmatch(part)
            if pod is None or not (_UID.fullmatch(pod["uid"]) or "kubepods" in line):
                continue
            # systemd has dashes for levels, so the kubelet writes those of a UID as underscores there.
            uid = pod["uid"].replace("_", "-") if pod["systemd"] else pod["uid"]
            containers = (match[1] for one in parts[at + 1 :] if (match := _CONTAINER.fullmatch(one)))
            return Owner(uid, next(containers, ""))
    return OUTSIDE
