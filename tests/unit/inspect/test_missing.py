"""Messages for a missing pod or namespace."""

from typing import Any

import pytest

from gpushare.inspect.errors import InspectError, KubectlFailed
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.pending import waiting
from gpushare.inspect.views.pods import pods
from tests.unit.inspect.reads import Reads
from tests.unit.inspect.test_views import DECISIONS, PLAIN, Answers, itself, options


def listed(*keys: str) -> dict[str, Any]:
    names_of = (key.partition("/") for key in keys)
    return {"items": [{"metadata": {"namespace": one[0], "name": one[2]}} for one in names_of]}


def test_similar_names_are_suggested_for_a_missing_pod() -> None:
    there = listed("default/mine", "default/job-x2", "default/job-x3", "default/job-x4", "default/job-x5")
    known = {
        "/api/v1/namespaces/default/pods?": there,
        "/api/v1/pods?": lambda path: listed(*(["team/far"] if path.endswith("%3Dfar") else [])),
        "/api/v1/namespaces/default": itself,
    }

    def message(pod: str) -> str:
        with pytest.raises(InspectError) as found:
            why(Answers(**known), options("--why", pod), PLAIN)
        return str(found.value)

    assert message("minee") == (
        'pod "minee" not found in namespace default (did you mean mine?); -n names another'
    )
    assert message("job") == (
        'pod "job" not found in namespace default (did you mean job-x2 or job-x3 or job-x4 or one of 1 more?); -n names another'
    )
    assert (
        message("far")
        == 'pod "far" not found in namespace default (did you mean team/far?); -n names another'
    )
    assert message("quite-another") == 'pod "quite-another" not found in namespace default; -n names another'
    assert message("none/mine") == 'pod "mine" not found: there is no namespace none; -n names another'


def test_an_empty_result_names_the_namespace() -> None:
    line = {"scheduler": {"name": "a", "firstAsked": 1.0, "lastAsked": 9.0}, "waiting": []}
    known = {
        DECISIONS: line,
        "/api/v1/namespaces/default": itself,
        "/api/v1/namespaces/shut": "Error from server (Forbidden): no",
        "/api/v1/nodes": {"items": []},
        "/api/v1/pods": {"items": []},
    }

    class Finishing(Answers):
        def reader(self, namespace: str) -> Any:
            return Reads(self)

        def start(self, *paths: str) -> Any:
            begun = super().start(*paths)
            begun.finish = begun.outcomes
            return begun

    def lines(*words: str) -> list[str]:
        kubectl = Finishing(**known)
        return [
            render(kubectl, options(view, *words), PLAIN).text
            for view, render in (("--pending", waiting), ("--pods", pods))
        ]

    heads = ["No pod that requests GPU memory is pending", "No pod has GPU memory"]
    assert lines() == [f"{head}.\n" for head in heads]
    for namespace in ("default", "shut"):
        assert lines("-n", namespace) == [f"{head} in namespace {namespace}.\n" for head in heads]
    assert lines("-n", "none") == [
        f"{head} in namespace none: there is no such namespace.\n" for head in heads
    ]


def test_an_unreadable_pod_is_not_reported_as_missing() -> None:
    kubectl = Answers(**{"/api/v1/namespaces/default/pods/x": "Error from server (Forbidden): no"})
    with pytest.raises(KubectlFailed, match="Forbidden"):
        why(kubectl, options("--why", "x"), PLAIN)
