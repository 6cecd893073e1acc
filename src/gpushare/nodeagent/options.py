"""The node agent's options. Imports nothing heavy: ``gpushare config`` reads this module only."""

from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.options import (
    CORE_POLICIES,
    ISOLATION_DIR,
    ISOLATION_LIBRARY_DIR,
    RECLAIM_POLICIES,
    WATCH_POLICIES,
    AskedIsolation,
)
from gpushare.nodeagent.runtime.selection import Asked
from gpushare.nodeagent.settings import CDI_DIRS
from gpushare.options.kinds import ADDRESS, CHOICE, FOLDER, INTEGER, SECONDS, SOCKET, SWITCH, TEXT, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_DAY_S: Final = 86400
_ISOLATION: Final = "isolation"
_ROOT: Final = Path("/")

_EXAMPLES: Final = """\
examples:
  gpushare node-agent --node worker-1              # on that node, as root; in the cluster the chart starts it
  gpushare node-agent --node worker-1 --config gpushare.yaml
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
isolation: docs/guide/isolation.md
"""

ROLE: Final = Role(
    "node-agent",
    "Device plugin of one node: shares its NVIDIA GPUs according to the node's label.",
    (
        Option("node", TEXT, "name of this node", absent="none (required)", variables=("NODE_NAME",)),
        *ACCESS,
        Option(
            "kubelet-dir",
            FOLDER,
            "directory of the kubelet's device plugin sockets",
            Path("/var/lib/kubelet/device-plugins"),
        ),
        Option(
            "pod-resources",
            SOCKET,
            "the kubelet's pod resources socket",
            Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        ),
        Option(
            "plugins-registry",
            FOLDER,
            "directory in which the kubelet finds DRA drivers",
            absent="plugins_registry beside --kubelet-dir",
        ),
        Option("unit", UNIT, "unit of aliyun.com/gpu-mem", "1GiB"),
        Option(
            "metrics-listen",
            ADDRESS,
            "address of /metrics and /metrics/dcgm, and of /healthz, /readyz and /usage unless they have their own",
            absent="nowhere",
        ),
        Option("probes-listen", ADDRESS, "address of /healthz and /readyz", absent="at --metrics-listen"),
        Option(
            "usage-listen",
            ADDRESS,
            "address of /usage, which requires a token",
            absent="at --metrics-listen",
        ),
        Option(
            "health-period", SECONDS, "interval between health checks of a GPU", 5.0, least=0.01, most=_DAY_S
        ),
        Option(
            "xid-recovery",
            SECONDS,
            "time without critical errors after which a GPU that answers is healthy again",
            300.0,
            least=0.01,
            most=_DAY_S,
        ),
        Option(
            "driver-root",
            FOLDER,
            "where this process sees the node's root directory, to find the driver's library",
            _ROOT,
        ),
        Option(
            "container-runtime",
            CHOICE,
            "how containers get their GPU: by NVIDIA's runtime, by CDI, or whichever the node supports",
            Asked.AUTO.value,
            choices=tuple(one.value for one in Asked),
        ),
        Option(
            "cdi-dirs",
            TEXT,
            "directories of CDI specs, as this process sees them; ours are written to the last one",
            ",".join(map(str, CDI_DIRS)),
            metavar="DIR,…",
        ),
        Option(
            "host-root",
            FOLDER,
            "where this process sees the node's root directory; removed from paths that are passed to the kubelet",
            _ROOT,
        ),
        Option(
            "mig-dynamic",
            SWITCH,
            "create MIG instances for ResourceClaims on GPUs in MIG mode, and destroy them afterwards, on nodes in mode dra",
            False,
        ),
        Option(
            "isolation",
            CHOICE,
            "isolation backend on nodes in the modes cgpu, core_mem, mps and dra: none, our libraries (preload), NVIDIA's MPS, "
            "the driver's own limits per cgroup (driver: memory only), or that of the mode (auto)",
            AskedIsolation.NONE.value,
            choices=tuple(one.value for one in AskedIsolation),
            group=_ISOLATION,
        ),
        Option(
            "isolation-dir",
            FOLDER,
            "directory for files of isolated containers, at the same path on the node; libraries go next to it",
            ISOLATION_DIR,
            group=_ISOLATION,
        ),
        Option(
            "isolation-library-dir",
            FOLDER,
            "directory of the isolation libraries and the arbiter",
            ISOLATION_LIBRARY_DIR,
            group=_ISOLATION,
        ),
        Option(
            "core-policy",
            CHOICE,
            "hard: a container gets at most its share of compute; idle: also what others leave idle",
            "hard",
            choices=CORE_POLICIES,
            group=_ISOLATION,
        ),
        Option(
            "isolated-pods",
            INTEGER,
            "maximum number of isolated pods per GPU",
            16,
            least=1,
            most=128,
            metavar="PODS",
            group=_ISOLATION,
        ),
        Option(
            "claim-memory-mib",
            INTEGER,
            "memory of a GPU that a ResourceClaim gets if it requests no amount, in MiB; 0: all of it",
            0,
            least=0,
            most=10_000_000,
            metavar="MIB",
        ),
        Option(
            "claim-compute",
            INTEGER,
            "percent of a GPU's compute that a ResourceClaim gets if it requests none, a multiple of 5; 0: not limited",
            0,
            least=0,
            most=100,
            metavar="PERCENT",
        ),
        Option(
            "watchdog",
            CHOICE,
            "what to do about processes that use more of a GPU than their container's share: nothing (off), report, or report "
            "and kill. Needs the host's PID namespace",
            "report",
            choices=WATCH_POLICIES,
            group=_ISOLATION,
        ),
        Option(
            "reclaim",
            CHOICE,
            "how to reclaim memory that containers use above their request and that other pods have requested: wait for them to release it, "
            "or kill their processes after --watchdog-grace",
            "kill",
            choices=RECLAIM_POLICIES,
            group=_ISOLATION,
        ),
        Option(
            "proc",
            FOLDER,
            "procfs of the host's PID namespace",
            Path("/proc"),
            group=_ISOLATION,
        ),
        Option(
            "cgroups",
            FOLDER,
            "root of the host's cgroup v2 hierarchy, for memory limits of drivers from r615 on",
            Path("/sys/fs/cgroup"),
            group=_ISOLATION,
        ),
        Option(
            "watchdog-period", SECONDS, "sampling interval", 5.0, least=0.01, most=_DAY_S, group=_ISOLATION
        ),
        Option(
            "watchdog-grace",
            SECONDS,
            "grace period before processes above their share are killed",
            30.0,
            least=0,
            most=_DAY_S,
            group=_ISOLATION,
        ),
        *LOGGING,
    ),
    groups={_ISOLATION: "isolation backend and watchdog"},
    epilog=_EXAMPLES,
)
