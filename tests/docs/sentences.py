"""Where each command of the pages' sentences and tables is typed: here, in a block that contains it, or by another test."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from documentation.blocks import fill, read_page
from documentation.inline import Inline, inline_commands
from documentation.navigation import in_order
from tests.docs import harmless
from tests.docs.doings import IN_A_PLAYGROUND, IN_THE_CHECKOUT
from tests.docs.places import STEPS, Place, place_of
from tests.docs.saying import says
from tests.docs.typist import PROJECT

NAMES: Final = (*(f"docs/{path}" for path in in_order(PROJECT / "docs")), "README.md", "examples/README.md")

_CHARTS: Final = "tests/e2e/test_sentences.py"
_CLUSTER: Final = "tests/e2e/product/test_departure.py"
_TOOLS: Final = "tests/e2e/test_sentences_in_checkout.py"
#: Typed by that test, which gets them here (``sentences_typed_by``); in ``pipelines/ci.py`` they are steps.
BY_ANOTHER: Final = {
    "make run ARGS=--exit": STEPS,
    "make docs": STEPS,
    "make docs-test": STEPS,
    "make test": STEPS,
    "make e2e": STEPS,
    "make e2e-parts": STEPS,
    "make bench-smoke": STEPS,
    "helm list": _CHARTS,
    "helm show values charts/CHART": _CHARTS,
    "helm show values charts/ack-ai-installer": _CHARTS,
    "helm upgrade … -f values.yaml": _CHARTS,
    "helm upgrade … --set KEY=VALUE": _CHARTS,
    "helm upgrade … --reuse-values --set KEY=VALUE": _CHARTS,
    "helm upgrade … --reset-then-reuse-values --set KEY=VALUE": _CHARTS,
    "helm upgrade … --reuse-values --set admission.referenceGpuMemoryMiB=16160": _CHARTS,
    "helm upgrade … --reuse-values --set extender.ignoredByScheduler=false": _CHARTS,
    "kubectl get validatingadmissionpolicies": _CHARTS,
    "kubectl get validatingadmissionpolicies,mutatingadmissionpolicies | grep gpushare": _CHARTS,
    "kubectl -n kube-system rollout restart deployment/ack-co-scheduler": _CHARTS,
    "kubectl annotate node NODE gpushare.dev/devices-": _CHARTS,
    "kubectl delete crd elasticquotatrees.scheduling.sigs.k8s.io": _CHARTS,
    "gpushare playground --control-plane DIR": _CHARTS,
    "make run CLUSTER=real": _CHARTS,
    "python -m gpushare_playground.controlplane --binaries DIR --state DIR": _CHARTS,
    "python -m tests.e2e.cluster build kubernetes-1.37": _CHARTS,
    'GPUSHARE_TEST_CONTROL_PLANE=DIR make test PYTEST_ARGS="-n0 tests/integration/whole"': _CHARTS,
    "kubectl -n kube-system logs POD": _CLUSTER,
    "kubectl -n kube-system logs deploy/ack-co-scheduler -c extender": _CLUSTER,
    "kubectl -n kube-system logs ds/gpushare-device-plugin-ds": _CLUSTER,
    "kubectl -n kube-system rollout status ds/gpushare-device-plugin-ds": _CLUSTER,
    "kubectl -n kube-system logs deploy/gpushare-uninstall": _CLUSTER,
    "make cluster K8S=VERSION": "tests/e2e/test_cluster.py",
    "make -C isolation aarch64": _TOOLS,
    "make -C isolation sanitize": _TOOLS,
    "make sanitize": _TOOLS,
    "make valgrind": _TOOLS,
    "make fuzz": _TOOLS,
    "pip install .": _TOOLS,
}


@dataclass(frozen=True, slots=True)
class Typed:
    """Where a command is typed, by which file (empty: by this folder), and how."""

    place: Place
    by: str = ""
    how: str = ""


@cache
def found() -> tuple[Inline, ...]:
    """All commands of the pages in order, except bare names of programs."""
    every = (one for name in NAMES for one in inline_commands(name, (PROJECT / name).read_text()))
    return tuple(one for one in every if not one.is_named_alone)


@cache
def where_typed() -> dict[str, Typed | None]:
    """Where each different command is typed; ``None``: nowhere."""
    return {text: _where(text) for text in dict.fromkeys(one.text for one in found())}


def sentences_typed_by(file: str) -> list[Inline]:
    """The commands that ``file`` (a test's ``__file__``) types: the first of equal ones."""
    path = file.removeprefix(f"{PROJECT}/")
    first = {one.text: one for one in reversed(found())}
    assigned = [text for text, by in BY_ANOTHER.items() if by == path]
    assert assigned, f"{path}: BY_ANOTHER in {__name__} has no command for it"
    assert set(assigned) <= set(first), f"no page has {', '.join(sorted(set(assigned) - set(first)))}"
    return [first[text] for text in assigned]


def asks(source: str) -> bool:
    """Whether a test's source gets its sentences here."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(ast.unparse(call) == f"{sentences_typed_by.__name__}(__file__)" for call in calls)


def summary() -> Iterator[str]:
    """A line for people: how many are typed where."""
    places = where_typed()
    here = Counter(one.how for one in places.values() if one and one.place is Place.HERE)
    elsewhere = Counter(one.by for one in places.values() if one and one.place is Place.ELSEWHERE)
    yield (
        f"{len(found())} commands in sentences and tables, {len(places)} different ones: "
        f"{here.total()} typed here ({_listed(here)}), {elsewhere.total()} elsewhere ({_listed(elsewhere)})"
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.most_common())


def _where(text: str) -> Typed | None:
    if harmless.is_harmless(text):
        return Typed(Place.HERE, how="as they stand")
    if any(doing.text == text for doing in IN_A_PLAYGROUND):
        return Typed(Place.HERE, how="in a playground of their own")
    if any(doing.text == text for doing in IN_THE_CHECKOUT):
        return Typed(Place.HERE, how="in the checkout")
    if text in BY_ANOTHER:
        return Typed(Place.ELSEWHERE, BY_ANOTHER[text])
    return next((typed for line, typed in _in_blocks() if says(text, line)), None)


@cache
def _in_blocks() -> tuple[tuple[str, Typed], ...]:
    """Commands of blocks that need no third-party data, and where they are typed; those typed here come first."""
    lines = list[tuple[str, Typed]]()
    for name in NAMES:
        page = read_page(name, (PROJECT / name).read_text())
        for block in page.blocks:
            place, by, _ = place_of(block)
            if not block.is_typed or place == Place.NOWHERE or "/" in block.needs:
                continue
            typed = Typed(Place(place), by, "in a block of a page")
            lines += [(fill(one, block.words), typed) for one in block.first]
            lines += [(fill(one.text, block.words), typed) for one in page.commands(block)]
    return tuple(sorted(lines, key=lambda one: one[1].place != Place.HERE))
