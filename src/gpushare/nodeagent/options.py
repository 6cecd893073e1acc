"""What can be set of a node agent. Imports nothing heavy: ``gpushare config`` reads this alone."""

from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.options import (
    CORE_POLICIES,
    ISOLATION_DIR,
    ISOLATION_LIBRARY_DIR,
    WATCH_POLICIES,
    AskedIsolation,
)
from gpushare.nodeagent.runtime.selection import Asked
from gpushare.nodeagent.settings import CDI_FOLDERS
from gpushare.options.kinds import ADDRESS, CHOICE, FOLDER, INTEGER, SECONDS, SOCKET, TEXT, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_DAY_S: Final = 86400
_ISOLATION: Final = "isolation"
_ROOT: Final = Path("/")

_EXAMPLES: Final = """\
examples:
  gpushare node-agent --node worker-1              # on that node, as root; in the cluster the chart starts it
  gpushare node-agent --node worker-1 --config gpushare.yaml
what each option means: docs/guide/configuration.md
what holds containers to their share: docs/guide/isolation.md
"""

ROLE: Final = Role(
    "node-agent",
    "Device plugin of one node: shares its NVIDIA GPUs as the node's label asks. Keeps no state on disk.",
    (
        Option("node", TEXT, "name of this node", absent="none, it must be given", variables=("NODE_NAME",)),
        *ACCESS,
        Option(
            "kubelet-dir", FOLDER, "folder of the kubelet's sockets", Path("/var/lib/kubelet/device-plugins")
        ),
        Option(
            "pod-resources",
            SOCKET,
            "the kubelet's pod resources socket",
            Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        ),
        Option("unit", UNIT, "unit of aliyun.com/gpu-mem", "1GiB"),
        Option(
            "metrics-listen",
            ADDRESS,
            "serve /metrics and /metrics/dcgm there, and of probes and use what has no address of its own",
            absent="nowhere",
        ),
        Option("probes-listen", ADDRESS, "serve /healthz and /readyz there", absent="at --metrics-listen"),
        Option(
            "usage-listen",
            ADDRESS,
            "serve /usage there, for those who show a token",
            absent="at --metrics-listen",
        ),
        Option("health-period", SECONDS, "between probes of a GPU", 5.0, least=0.01, most=_DAY_S),
        Option(
            "xid-recovery",
            SECONDS,
            "how long after a critical error a GPU that answers is trusted again",
            300.0,
            least=0.01,
            most=_DAY_S,
        ),
        Option(
            "driver-root",
            FOLDER,
            "the node's root folder as this process sees it, to find the driver's library in",
            _ROOT,
        ),
        Option(
            "container-runtime",
            CHOICE,
            "how containers get their GPU: by NVIDIA's runtime, by CDI, or as the node can",
            Asked.AUTO.value,
            choices=tuple(one.value for one in Asked),
        ),
        Option(
            "cdi-dirs",
            TEXT,
            "folders of CDI descriptions, as this process sees them; the last one is written to",
            ",".join(map(str, CDI_FOLDERS)),
            metavar="DIR,…",
        ),
        Option(
            "host-root",
            FOLDER,
            "the node's root folder as this process sees it: paths below it are told to the kubelet without it",
            _ROOT,
        ),
        Option(
            "isolation",
            CHOICE,
            "what holds containers to their share on nodes that isolate (modes cgpu, core_mem, mps): nothing, our "
            "libraries (preload), NVIDIA's MPS, the driver's own limits by cgroup (driver: memory alone), or as the mode "
            "says (auto)",
            AskedIsolation.NONE.value,
            choices=tuple(one.value for one in AskedIsolation),
            group=_ISOLATION,
        ),
        Option(
            "isolation-dir",
            FOLDER,
            "files of isolated containers, by the path that the node has for it, too; libraries go beside it",
            ISOLATION_DIR,
            group=_ISOLATION,
        ),
        Option(
            "isolation-library-dir",
            FOLDER,
            "where our own libraries and the arbiter are",
            ISOLATION_LIBRARY_DIR,
            group=_ISOLATION,
        ),
        Option(
            "core-policy",
            CHOICE,
            "hard: a container gets its share of compute and no more; idle: what others leave idle, too",
            "hard",
            choices=CORE_POLICIES,
            group=_ISOLATION,
        ),
        Option(
            "isolated-pods",
            INTEGER,
            "the most pods that are held apart on one GPU",
            16,
            least=1,
            most=128,
            metavar="PODS",
            group=_ISOLATION,
        ),
        Option(
            "watchdog",
            CHOICE,
            "what is done about processes that hold more of a GPU than their container was given: nothing is looked "
            "at (off), it is told (report), or they are ended as well (kill). It needs the node's PIDs",
            "report",
            choices=WATCH_POLICIES,
            group=_ISOLATION,
        ),
        Option(
            "proc",
            FOLDER,
            "where the node's processes are told of, by the PIDs that the driver has for them",
            Path("/proc"),
            group=_ISOLATION,
        ),
        Option(
            "cgroups",
            FOLDER,
            "the root of the node's cgroups of version 2, on which drivers from r615 on hold containers to their share",
            Path("/sys/fs/cgroup"),
            group=_ISOLATION,
        ),
        Option(
            "watchdog-period", SECONDS, "between two looks", 5.0, least=0.01, most=_DAY_S, group=_ISOLATION
        ),
        Option(
            "watchdog-grace",
            SECONDS,
            "how long they may before they are ended",
            30.0,
            least=0,
            most=_DAY_S,
            group=_ISOLATION,
        ),
        *LOGGING,
    ),
    groups={_ISOLATION: "what holds containers to their share, and who watches over it"},
    epilog=_EXAMPLES,
)
