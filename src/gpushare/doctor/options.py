"""The doctor's options. Imports nothing heavy: ``gpushare config`` reads this module only."""

from pathlib import Path
from typing import Final

from gpushare.options.kinds import CHOICE, FOLDER, SECONDS, SWITCH, TEXT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS

_NODE: Final = "gpushare doctor node"
_ROOT: Final = Path("/")
_EPILOG: Final = """\
It changes nothing. What cannot be read, for lack of permission or of an answer, is reported as unknown.
exit code: 0 all is well (or unknown), 1 there are warnings, 2 there are faults, or nothing could be checked

examples:
  gpushare doctor                       the cluster of your kubeconfig
  gpushare doctor -o json | jq '.findings[] | select(.state == "fault")'
  gpushare doctor node                  this node; as root, or in the agent's pod:
  kubectl -n kube-system exec ds/gpushare-device-plugin-ds -- gpushare doctor node --host-root /host
every check, and what to do: docs/guide/doctor.md
"""

ROLE: Final = Role(
    "doctor",
    "Checks a cluster, or with `node` this node, and suggests fixes.\n\n"
    "  gpushare doctor [options]\n  gpushare doctor node [options]",
    (
        *ACCESS,
        Option("output", CHOICE, "a table, or JSON", "table", choices=("table", "json"), short="-o"),
        Option("all", SWITCH, "show passed checks, too, in full", False),
        Option("timeout", SECONDS, "timeout of each request", 10.0, least=0.1, most=300),
        Option(
            "namespace",
            TEXT,
            "where the charts are installed",
            absent="where their objects are found",
            short="-n",
        ),
        Option(
            "driver-root",
            FOLDER,
            "the node's root directory as seen by this process, in which to find the driver's library",
            absent="--host-root",
            group=_NODE,
        ),
        Option("host-root", FOLDER, "the node's root directory as seen by this process", _ROOT, group=_NODE),
        Option(
            "kubelet-dir",
            FOLDER,
            "directory of the kubelet's device plugin sockets, on the node; it does not follow --kubelet-root",
            Path("/var/lib/kubelet/device-plugins"),
            group=_NODE,
        ),
        Option(
            "kubelet-root",
            FOLDER,
            "the kubelet's --root-dir, on the node",
            Path("/var/lib/kubelet"),
            group=_NODE,
        ),
        Option(
            "isolation-library-dir",
            FOLDER,
            "where our isolation libraries and the arbiter are",
            Path("/usr/lib/gpushare/isolation"),
            group=_NODE,
        ),
        Option(
            "cdi-dirs",
            TEXT,
            "where the container runtime looks for CDI specs, on the node, with commas between them",
            "/etc/cdi,/var/run/cdi",
            metavar="DIR,…",
            group=_NODE,
        ),
        Option(
            "containerd-config",
            TEXT,
            "configuration of containerd, on the node",
            "/etc/containerd/config.toml",
            metavar="FILE",
            group=_NODE,
        ),
    ),
    epilog=_EPILOG,
    groups={_NODE: "checks of the node it runs on"},
)
