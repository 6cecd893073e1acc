"""Charts in another namespace than the given one, or in a namespace of their own, or being removed."""

import json
from typing import Any

import pytest

from gpushare.doctor.cluster.facts import ClusterFacts, Json, name_of
from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, Unread, examine
from gpushare.kube.client.errors import ApiError
from tests.unit.doctor.healthy_cluster import objects, sound
from tests.unit.doctor.test_reading_of_the_webhook import Server

NOTHING: dict[str, Any] = {"daemon_sets": [], "deployments": [], "config_maps": [], "leases": []}
ALL_ELSEWHERE = {field: ["kube-system"] for field in NOTHING}


def bad(facts: ClusterFacts, check: str = "installation") -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.check == check and one.state != "ok"]


def removal(namespace: str = "kube-system") -> list[Json]:
    return [{"metadata": {"name": "gpushare-uninstall", "namespace": namespace}}]


# --- another namespace than the given one ------------------------------------------------------------------


def test_charts_in_another_namespace_are_one_fault_that_names_it() -> None:
    (found,) = bad(sound(**NOTHING, namespace="oops", elsewhere=ALL_ELSEWHERE))
    assert (found.state, found.subject) == ("fault", "namespace oops")
    assert found.message == (
        "these objects are in namespace kube-system instead: DaemonSet gpushare-device-plugin-ds, "
        "Deployment ack-co-scheduler, ConfigMap ack-co-scheduler, Lease ack-co-scheduler"
    )
    assert found.suggestion == "name that one with --namespace, or omit it to search all namespaces"


def test_missing_charts_are_to_be_installed_where_they_were_expected() -> None:
    found = bad(sound(**NOTHING, namespace="gpu"))
    assert len(found) == 4
    assert all(" -n gpu`" in one.suggestion for one in found)


class Elsewhere(Server):
    """Has both charts in ``kube-system``; lists of all namespaces may be refused."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__({})
        self._refuses = refuses

    async def request(self, method: str, path: str, **others: Any) -> bytes:
        name = (others.get("params") or {}).get("fieldSelector", "").partition("=")[2]
        if "/namespaces/" not in path and name in ("gpushare-device-plugin-ds", "gpushare-uninstall"):
            if self._refuses:
                raise ApiError(403, "Forbidden", "you may not", path)
            items = [{"metadata": {"name": name, "namespace": "kube-system"}}]
            return json.dumps({"metadata": {}, "items": items}).encode()
        return await super().request(method, path, **others)


@pytest.mark.parametrize(
    ("refuses", "elsewhere", "removals"),
    [(False, {"daemon_sets": ["kube-system"]}, ["kube-system/gpushare-uninstall"]), (True, {}, [])],
)
async def test_with_a_given_namespace_the_others_are_searched_as_far_as_permitted(
    refuses: bool, elsewhere: dict[str, list[str]], removals: list[str]
) -> None:
    facts = await Reader(Elsewhere(refuses=refuses), 1.0, "oops").read()  # type: ignore[arg-type]
    assert facts.elsewhere == elsewhere
    assert not isinstance(facts.removals, Unread)
    assert [name_of(one) for one in facts.removals] == removals
    assert facts.daemon_sets == []


async def test_without_a_given_namespace_no_others_are_searched() -> None:
    facts = await Reader(Elsewhere(refuses=False), 1.0).read()  # type: ignore[arg-type]
    assert facts.elsewhere == {}
    assert facts.daemon_sets != []


# --- a namespace of their own ------------------------------------------------------------------------------


def agents_in(namespace: str) -> list[Json]:
    (one,) = objects("DaemonSet")
    one["metadata"]["namespace"] = namespace
    return [one]


def test_pods_in_the_namespace_of_the_release_bypass_admission() -> None:
    (found,) = bad(sound(daemon_sets=agents_in("default")), "admission")
    assert (found.state, found.subject) == ("warning", "namespace default")
    assert found.message.startswith("admission skips pods in it")


def test_a_namespace_only_for_the_charts_is_warned_of_once_gpu_pods_are_in_it() -> None:
    alone = sound(daemon_sets=agents_in("gpu"))
    assert not bad(alone, "admission")
    (pod, *_) = alone.pods if isinstance(alone.pods, list) else ()
    pod.metadata.namespace = "gpu"
    pod.metadata.labels = {"app.kubernetes.io/part-of": "gpushare"}
    assert not bad(alone, "admission")
    pod.metadata.labels = None
    (found,) = bad(alone, "admission")
    assert (found.state, found.subject) == ("warning", "namespace gpu")


def test_without_admission_nothing_bypasses_it() -> None:
    found = bad(sound(daemon_sets=agents_in("gpu"), validating_policies=[]), "admission")
    assert [one.subject for one in found] == ["admission"]


# --- removal -----------------------------------------------------------------------------------------------


def test_a_removal_in_progress_is_reported_instead_of_missing_agents() -> None:
    (found,) = bad(sound(daemon_sets=[], removals=removal()))
    assert (found.state, found.subject) == ("warning", "deployment kube-system/gpushare-uninstall")
    assert found.message.startswith("ack-ai-installer is being removed")
    assert "wait --for=delete deployment/gpushare-uninstall" in found.suggestion


def test_agents_after_a_removal_end_it() -> None:
    assert bad(sound(removals=removal())) == []
    assert bad(sound(removals=Unread("no"))) == []


@pytest.mark.parametrize(
    "changes", [{}, {"daemon_sets": [], "namespace": "x", "elsewhere": {"daemon_sets": ["kube-system"]}}]
)
def test_a_removal_next_to_a_living_installation_is_a_fault(changes: dict[str, Any]) -> None:
    found = bad(sound(removals=removal("old"), **changes))[0]
    assert (found.state, found.subject) == ("fault", "deployment old/gpushare-uninstall")
    assert "the agents of namespace kube-system write" in found.message
    assert found.suggestion == (
        "`kubectl -n old delete deployment gpushare-uninstall`, then `kubectl delete clusterrole gpushare-uninstall`"
    )
