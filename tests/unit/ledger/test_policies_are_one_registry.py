"""A policy is added in one place: labels, options, GPUs, nodes and messages follow from it."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

import gpushare
from gpushare.api import names
from gpushare.api.node.device import Device, Placement, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, ObjectMeta
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.placement.policies import POLICIES, Candidate, Policy
from gpushare.options.option import Role
from gpushare.scheduler.cache.cache import NodeReader
from gpushare.simulate.peers.names import PEERS
from tests.unit.ledger.ledger_samples import asks, holding, share

PACKAGE = Path(gpushare.__file__).parent
CHART = PACKAGE.parent.parent / "charts" / "ack-co-scheduler"


def fewest_pods(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the fewest pods, then the lower index."""
    return candidate.pods, candidate.row


@pytest.fixture
def fewest() -> Iterator[Placement]:
    """A policy that is registered only here."""
    made = object.__new__(Placement)
    made._name_, made._value_ = "FEWEST", "fewest"
    Placement._member_map_["FEWEST"] = made
    Placement._member_names_.append("FEWEST")
    Placement._value2member_map_["fewest"] = made
    POLICIES[made] = Policy(
        fewest_pods, "the GPU with the fewest pods", lambda left, pods: pods, lambda left, pods: pods
    )
    yield made
    del POLICIES[made], Placement._value2member_map_["fewest"], Placement._member_map_["FEWEST"]
    Placement._member_names_.remove("FEWEST")


def role_of(part: str) -> Role:
    """The options of a role, declared again."""
    spec = importlib.util.spec_from_file_location(f"redeclared_{part}", PACKAGE / part / "options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    role: Role = module.ROLE
    return role


def node_object(name: str, **labels: str) -> Node:
    devices = tuple(Device(index, f"{name}-gpu{index}", 16384) for index in range(2))
    annotation = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, devices)
    meta = ObjectMeta(
        name=name, labels={names.LABEL_MODE: "share", **labels}, annotations={names.ANN_DEVICES: annotation}
    )
    return Node(meta)


@pytest.mark.parametrize("part", ["scheduler", "dashboard", "simulate"])
def test_an_option_takes_every_registered_policy(part: str, fewest: Placement) -> None:
    [option] = [one for one in role_of(part).options if one.name in ("node-policy", "policy")]
    # The simulation takes policies of other projects too.
    assert tuple(one for one in option.choices if one not in PEERS) == tuple(one.value for one in Placement)
    assert fewest.value in option.choices


def test_a_new_policy_set_by_the_option_chooses_gpus_and_nodes(fewest: Placement) -> None:
    policy = Placement("fewest")
    assert policy is fewest
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16, node_policy=policy)
    ledger = Ledger(node_policy=policy)
    for name in ("busy", "idle", "labelled"):
        labels = {names.LABEL_PLACEMENT: "binpack"} if name == "labelled" else {}
        ledger.set_node(reader.read(node_object(name, **labels)).devices)
        # The tightest GPU has two pods, the other one.
        for gpu, uid, mib in ((0, "a", 4096), (0, "b", 4096), (1, "c", 1024)):
            if name != "idle":
                ledger.hold(f"{name}-{uid}", "p", name, holding(share(f"{name}-gpu{gpu}", mib)))
    assert ledger.score(asks(2), ["busy", "idle"]) == [0, 10]
    assert [_indices(ledger, uid, asks(2), "idle") for uid in ("u", "v", "w")] == [[0], [1], [0]]
    assert _indices(ledger, "x", asks(2), "busy") == [1]
    assert _indices(ledger, "y", asks(2), "labelled") == [0], "by its own label"


def _indices(ledger: Ledger, uid: str, request: Request, on: str) -> list[int]:
    return [one.index for one in ledger.reserve(uid, f"default/{uid}", request, on).gpus]


def test_memory_left_over_is_that_of_the_gpu_that_a_new_policy_chooses(fewest: Placement) -> None:
    ledger = Ledger()
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16, node_policy=fewest)
    ledger.set_node(structs.replace(reader.read(node_object("n")).devices, name="n"))
    for uid in ("a", "b"):
        ledger.hold(uid, "p", "n", holding(share("n-gpu0", 1024)))
    ledger.hold("c", "p", "n", holding(share("n-gpu1", 6144)))
    for request, left_mib in ((asks(2), 16384 - 6144 - 2048), (asks(2, gpus=2), 16384 - 4096 - 2048)):
        assert ledger._left.of(request)[ledger._books.column_of["n"]] == left_mib


def test_every_policy_is_in_the_registry_and_in_the_charts_schema() -> None:
    assert list(POLICIES) == list(Placement)
    schema = json.loads((CHART / "values.schema.json").read_text())
    listed = schema["properties"]["extender"]["properties"]["nodePolicy"]["enum"]
    assert listed == [one.value for one in Placement]
