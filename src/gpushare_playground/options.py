"""The options of ``gpushare playground``."""

from pathlib import Path
from typing import Final

from gpushare.options.kinds import FILES, FOLDER, SWITCH, UNIT
from gpushare.options.option import Option, Role

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_REAL: Final = "real control plane"

ROLE: Final = Role(
    "playground",
    "A whole cluster in one process tree, with simulated GPUs: no Kubernetes and no GPU needed.",
    (
        Option("exit", SWITCH, "end after the tour; the exit code says whether every check passed", False),
        Option("walk", SWITCH, "tour of the examples before staying up", True),
        Option("unit", UNIT, "with --no-walk: memory unit", absent="1GiB; the tour sets it itself"),
        Option("images", FOLDER, "folder of image descriptions of your own"),
        Option(
            "driver",
            FOLDER,
            "folder of the fake driver that `make fakegpu` builds",
            _CHECKOUT / "build" / "fakegpu",
            absent="build/fakegpu of the checkout",
        ),
        Option(
            "isolation",
            FOLDER,
            "folder of the isolation libraries that `make isolation` builds",
            _CHECKOUT / "build" / "isolation",
            absent="build/isolation of the checkout",
            role="playground",
        ),
        Option(
            "examples",
            FOLDER,
            "folder of the example manifests",
            _CHECKOUT / "examples",
            absent="examples of the checkout",
        ),
        Option(
            "control-plane",
            FOLDER,
            "folder with the real etcd, kube-apiserver, kube-controller-manager and kube-scheduler",
            absent="the embedded one",
            group=_REAL,
        ),
        Option("apply", FILES, "admission rules, instead of the chart's", [], group=_REAL),
        Option(
            "chart",
            FOLDER,
            "chart whose admission rules apply, if --control-plane has helm",
            _CHECKOUT / "charts" / "ack-ai-installer",
            absent="charts/ack-ai-installer of the checkout",
            group=_REAL,
        ),
    ),
    groups={_REAL: "instead of the embedded control plane"},
)
