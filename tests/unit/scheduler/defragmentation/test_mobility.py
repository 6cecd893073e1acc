"""Which pods may be moved: those that their controller recreates elsewhere, unless users say otherwise."""

from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.plugins.defragmentation.mobility import with_mobility
from tests.unit.scheduler.world import pod_object

DECODE = with_mobility(decode_record)


def seen(pod: dict[str, Any]) -> tuple[str, str]:
    found = DECODE(msgspec.json.encode(pod))
    assert found is not None
    return found[1].owner, found[1].room_made


def owned(kind: str, wish: str | None = None, *, controller: bool = True, **more: Any) -> dict[str, Any]:
    pod = pod_object("p", 4, **more)
    pod["metadata"]["ownerReferences"] = [{"uid": "o", "kind": kind, "controller": controller}]
    if wish is not None:
        pod["metadata"]["annotations"][names.ANN_DEFRAGMENTATION] = wish
    return pod


@pytest.mark.parametrize(
    ("kind", "wish", "moves"),
    [
        ("ReplicaSet", None, True),
        ("StatefulSet", None, True),
        ("ReplicationController", None, True),
        ("ReplicaSet", "false", False),
        ("ReplicaSet", "perhaps", False),
        ("Job", None, False),
        ("Job", "true", True),
        ("Workflow", None, False),
        ("DaemonSet", "true", False),
    ],
)
def test_the_kind_of_its_controller_decides_unless_the_pod_overrides_it(
    kind: str, wish: str | None, moves: bool
) -> None:
    assert seen(owned(kind, wish)) == ("o" if moves else "", "")


def test_bare_pods_and_members_of_gangs_stay() -> None:
    assert seen(pod_object("p", 4)) == ("", "")
    assert seen(owned("ReplicaSet", controller=False)) == ("", "")
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    assert seen(owned("ReplicaSet", labels=gang)) == ("", "")


def test_a_move_is_read_only_from_the_pending_pod() -> None:
    made = {names.ANN_ROOM_MADE: "5"}
    assert seen(pod_object("p", 4, annotations=made)) == ("", "5")
    assert seen(pod_object("p", 4, annotations=made, node="n")) == ("", "")


def test_pods_without_gpus_are_skipped() -> None:
    assert DECODE(msgspec.json.encode(pod_object("p"))) is None
