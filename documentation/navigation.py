"""Which pages the site has, in which order, under which names.

A page of ``docs/`` that is missing in ``SECTIONS`` fails the build, except in folders whose pages are all included.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEADING: Final = re.compile(r"^# +(.+?) *$", re.MULTILINE)


class Unlisted(Exception):
    """Pages without a place in the navigation, or places without a page."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the navigation. ``pages``: (name in it, empty for the page's own heading; path below ``docs/``).

    ``rest``: folders whose other pages follow, by name.
    """

    title: str
    pages: tuple[tuple[str, str], ...] = ()
    rest: tuple[str, ...] = ()


SECTIONS: Final = (
    Section(
        "Start",
        (
            ("gpushare", "index.md"),
            ("Supported hardware and clusters", "support.md"),
            ("Comparison", "comparison.md"),
            ("Glossary", "glossary.md"),
        ),
    ),
    Section("Tutorial", (("Your first shared GPU", "tutorial/first-shared-gpu.md"),)),
    Section(
        "How to",
        (
            ("Install", "guide/install.md"),
            ("Label nodes", "how-to/label-nodes.md"),
            ("Share without isolation", "how-to/share-without-isolation.md"),
            ("Share with isolation", "how-to/share-with-isolation.md"),
            ("Allocate compute", "how-to/allocate-compute.md"),
            ("Change the memory unit", "how-to/change-the-unit.md"),
            ("Request MiB and percent", "guide/requests.md"),
            ("Burstable memory", "guide/burstable-memory.md"),
            ("Migrate from HAMi or KAI", "guide/migrate.md"),
            ("Multiple and whole GPUs", "guide/several-gpus.md"),
            ("MIG instances", "guide/mig.md"),
            ("GPU topology", "guide/topology.md"),
            ("ResourceClaims (DRA)", "guide/dra.md"),
            ("Scale on GPU use (HPA, KEDA)", "how-to/scale-on-gpu-use.md"),
            ("Gangs", "guide/gangs.md"),
            ("Quotas", "guide/quotas.md"),
            ("Elastic quotas", "guide/elastic-quotas.md"),
            ("GPU selection", "guide/gpu-selection.md"),
            ("Kueue", "guide/kueue.md"),
            ("JobSet", "guide/jobset.md"),
            ("LeaderWorkerSet", "guide/leaderworkerset.md"),
            ("KubeRay", "guide/kuberay.md"),
            ("Kubeflow Trainer", "guide/kubeflow-trainer.md"),
            ("Argo Workflows", "guide/argo.md"),
            ("Model servers", "guide/model-servers.md"),
            ("Node group order", "guide/resource-policy.md"),
            ("Preemption", "guide/preemption.md"),
            ("Defragmentation", "guide/defragmentation.md"),
            ("Cluster autoscaling", "guide/autoscaling.md"),
        ),
        rest=("how-to",),
    ),
    Section(
        "Troubleshooting",
        (
            ("Where to look", "troubleshooting/index.md"),
            ("Pending pods", "troubleshooting/waiting.md"),
            ("Rejected requests", "troubleshooting/refused.md"),
            ("Inside containers", "troubleshooting/containers.md"),
            ("Events", "troubleshooting/events.md"),
            ("Commands", "troubleshooting/commands.md"),
            ("Doctor's findings", "troubleshooting/doctor.md"),
            ("Alerts", "troubleshooting/alerts.md"),
            ("Logs", "troubleshooting/logs.md"),
            ("Processes", "troubleshooting/processes.md"),
        ),
    ),
    Section(
        "Concepts",
        (
            ("Life of a pod", "way-of-a-pod.md"),
            ("Placement", "guide/placement.md"),
            ("Isolation", "guide/isolation.md"),
            ("Admission", "guide/admission.md"),
            ("Security", "security.md"),
        ),
    ),
    Section(
        "Reference",
        (
            ("Command lines", "reference/command-line.md"),
            ("kubectl inspect cgpu", "guide/inspect.md"),
            ("Values of the charts", "reference/chart-values.md"),
        ),
        rest=("reference",),
    ),
    Section(
        "Operation",
        (("Upgrade, fail-over, removal", "operation/operate.md"),),
        rest=("operation", "guide"),
    ),
    Section(
        "Developers",
        (
            ("Architecture", "architecture.md"),
            ("How isolation works", "developer/isolation.md"),
            ("Testing", "developer/testing.md"),
            ("Scheduler plugins", "developer/scheduler-plugins.md"),
            ("Placement policies", "developer/placement.md"),
            ("The test cluster", "developer/test-cluster.md"),
            ("The playground on the real control plane", "developer/playground-control-plane.md"),
            ("The fake driver", "developer/fakegpu.md"),
            ("Checking a real GPU", "developer/gpu-check.md"),
            ("Images", "developer/images.md"),
            ("Release", "developer/release.md"),
            ("Roadmap", "roadmap.md"),
        ),
        rest=("developer", "troubleshooting"),
    ),
    Section("Decisions", rest=("decisions",)),
    Section("Measurements", rest=("measurements",)),
)


def pages(docs: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Every section with its pages (name, path); raises ``Unlisted``."""
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    named = {path for section in SECTIONS for _, path in section.pages}
    if missing := sorted(named - there):
        raise Unlisted(f"the navigation names missing pages: {', '.join(missing)}")
    free = there - named
    found = []
    for section in SECTIONS:
        rest = sorted(path for path in free if str(Path(path).parent) in section.rest)
        free -= set(rest)
        listed = [*section.pages, *(("", path) for path in rest)]
        found.append((section.title, [(name or heading(docs / path), path) for name, path in listed]))
    if free:
        raise Unlisted(
            f"pages without a place in the navigation: {', '.join(sorted(free))}; name them in documentation/navigation.py"
        )
    return found


def heading(page: Path) -> str:
    """The page's own heading, as text."""
    found = _HEADING.search(page.read_text())
    return found[1].replace("`", "") if found else page.stem


def in_order(docs: Path) -> Iterator[str]:
    """Paths of all pages as the navigation orders them."""
    for _, listed in pages(docs):
        yield from (path for _, path in listed)
