"""Whatever tenants write is read, or refused with an error that callers expect, in time proportional to its size.

Each document is a good one in which values were replaced: by other types, absurdly large values, or text that means something
elsewhere. ``make soak`` tries thousands.
"""

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.admission.accept.translation import PRODUCTS
from gpushare.admission.metrics import Metrics
from gpushare.admission.review.http_app import ReviewApp
from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.api.node.device import Device
from gpushare.api.objects import decode_pod
from gpushare.api.request.choice_formats import FORMATS, problem
from gpushare.api.request.gpu_selection import RULES, selection_of
from gpushare.dashboard.data.claims import decode_claim
from gpushare.dashboard.data.records import decode_seen
from gpushare.nodeagent.allocate.pod_allocations import decode_bound_pod
from gpushare.nodeagent.dra.claims import ClaimReference, allocated_devices, shares_of
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.node.watches import decode_pod_record as decode_agents_record
from gpushare.scheduler.cache.pod_records import counted_record_of, decode_record
from gpushare.scheduler.plugins.elastic_quota.watch import decode_tree
from gpushare.scheduler.plugins.resource_policy.watch import decode_keyed_policy, decode_policy_pod
from gpushare.scheduler.server.protocol import WireError, read_args, read_binding, read_preemption
from tests.randomized import SOAK, rounds
from tests.unit.admission.reviews import Templates, review, reviewer
from tests.unit.dashboard.live_pages import Shown, described, gpu

#: Processor seconds for one document, checked in soak runs: none is above 64 KiB.
_MOST_S: Final = 1.0
_ANNOTATIONS: Final = tuple(
    value for name, value in vars(names).items() if name.startswith("ANN_") and isinstance(value, str)
)
_LABELS: Final = tuple(
    value for name, value in vars(names).items() if name.startswith("LABEL_") and isinstance(value, str)
)

texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "", "0", "-1", "3", "1e1000000000", "1E-1000000000", "9" * 5000, "0x10", "١٢", "1_000", "1.5Gi", "3Gi", " 3", "3\n",
            "NaN", "Infinity", "true", "null", "{}", "[]", '{"a":' * 200, "[" * 5000, "GPU-0", "0,1", "0-7" * 500, "\0", "\ud800",
            "n1\n2026-01-01 ERROR forged", "%s%n", "*", "a" * 20000, "m/" * 5000, "15m", "1h" * 3000, "9" * 400 + "h",
        ]
    ),
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)

POD: Final[Json] = {
    "metadata": {
        "name": "p",
        "namespace": "team-a",
        "uid": "u-1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2", names.LABEL_POD_GPU_COUNT: "2"},
        "annotations": {names.ANN_REQUESTED: "{}", names.ANN_SHARE: "{}"},
        "ownerReferences": [{"kind": "Job", "name": "j", "uid": "u-2", "controller": True}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": names.SCHEDULER_NAME,
        "priority": 5,
        "nodeSelector": {"zone": "a"},
        "containers": [
            {
                "name": "main",
                "image": "i",
                "resources": {
                    "limits": {names.GPU_MEM: "3", names.GPU_CORE: "30", "cpu": "100m"},
                    "requests": {names.GPU_MEM: "3"},
                },
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "v", "mountPath": "/run/gpushare"}],
            }
        ],
        "initContainers": [{"name": "first", "resources": {"limits": {names.GPU_MEM: "1"}}}],
        "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]
                }
            }
        },
    },
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
}  # fmt: skip
CLAIMING_POD: Final[Json] = {
    "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "nodeName": "a",
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "own", "resourceClaimName": "c"}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}, {"name": "own", "request": "r"}]}}],
    },
    "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]},
}  # fmt: skip
CLAIM: Final[Json] = {
    "metadata": {"name": "c", "namespace": "team-a", "uid": "u-3"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "r",
                    "firstAvailable": [
                        {"name": "big", "deviceClassName": "gpushare.dev", "count": 2, "capacity": {"requests": {"memory": "3Gi"}}},
                        {"name": "monitor", "deviceClassName": "gpushare.dev", "adminAccess": True},
                    ],
                }
            ]
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "r/big", "driver": "gpushare.dev", "pool": "a", "device": f"gpu-a-{index}",
                        "shareID": "s", "consumedCapacity": {"memory": "3Gi", "compute": "30"},
                    }
                    for index in range(2)
                ],
                "config": [
                    {
                        "requests": ["r"],
                        "opaque": {
                            "driver": "gpushare.dev",
                            "parameters": {"apiVersion": "gpushare.dev/v1", "kind": "ShareConfig", "computePolicy": "hard"},
                        },
                    }
                ],
            }
        },
        "reservedFor": [{"resource": "pods", "name": "p"}],
    },
}  # fmt: skip
HAMI_POD: Final[Json] = {
    "metadata": {"name": "p", "namespace": "team-a", "annotations": {"nvidia.com/use-gputype": "A10", "hami.io/gpu-scheduler-policy": "spread"}},
    "spec": {
        "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}}},
            {"name": "other", "resources": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "30", "nvidia.com/gpucores": "0"}}},
        ]
    },
}  # fmt: skip
KAI_POD: Final[Json] = {
    "metadata": {
        "name": "p",
        "namespace": "team-a",
        "annotations": {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "main"},
    },
    "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
}  # fmt: skip
POLICY: Final[Json] = {
    "metadata": {"name": "policy", "namespace": "team-a", "generation": 1},
    "spec": {
        "selector": {"app": "a"},
        "strategy": "prefer",
        "units": [
            {"nodeSelector": {"zone": "a"}, "max": 2, "podLabels": {"q": "r"}, "podAnnotations": {"a": "b"}},
            {"resource": "ecs"},
        ],
        "whenTryNextUnits": {"policy": "TimeoutOrExceedMax", "timeout": "15m"},
    },
}
TREE: Final[Json] = {
    "metadata": {"name": "tree", "namespace": "kube-system", "generation": 1},
    "spec": {
        "root": {
            "name": "root",
            "max": {"cpu": 90, names.GPU_MEM: "40"},
            "min": {"cpu": 90},
            "children": [{"name": "leaf", "max": {"cpu": 80}, "min": {"cpu": 10}, "namespaces": ["team-a"]}],
        }
    },
}
FILTER: Final[Json] = {"Pod": POD, "NodeNames": ["n1", "n2"], "Nodes": None}
BIND: Final[Json] = {"PodName": "p", "PodNamespace": "team-a", "PodUID": "u-1", "Node": "n1"}
PREEMPT: Final[Json] = {
    "Pod": POD,
    "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}},
}


def places_of(item: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value of a document."""
    for key in item if isinstance(item, dict) else range(len(item)):
        yield (*at, key)
        if isinstance(item[key], dict | list):
            yield from places_of(item[key], (*at, key))


def put(item: Any, place: tuple[Any, ...], value: Any) -> None:
    """Replace a value, unless an earlier replacement removed its place."""
    *parents, last = place
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for key in parents:
            item = item[key]
        item[last] = value


@st.composite
def mutated(draw: st.DrawFn, good: Json) -> bytes:
    """A good document with one to three values replaced, and keys of ours added."""
    made = copy.deepcopy(good)
    places = list(places_of(good))
    for _ in range(draw(st.integers(0, 3))):
        put(made, draw(st.sampled_from(places)), draw(anything))
    for kind, keys in (("annotations", _ANNOTATIONS), ("labels", _LABELS)):
        found = made.get("metadata") if isinstance(made.get("metadata"), dict) else {}
        if isinstance(found, dict) and draw(st.booleans()):
            found[kind] = draw(st.dictionaries(st.sampled_from(keys), texts, max_size=3))
    # As it would be sent: a lone surrogate has no UTF-8 encoding.
    return json.dumps(made).encode()


def read_as(read: Callable[[bytes], object], raw: bytes, *expected: type[Exception]) -> None:
    """Reads or refuses, raises nothing else, and does not take long."""
    began_s = time.process_time()
    with contextlib.suppress(expected):
        read(raw)
    if SOAK:
        assert time.process_time() - began_s < _MOST_S


repeated = settings(max_examples=rounds(60, soak=3_000), deadline=None)


def test_the_good_documents_are_accepted() -> None:
    claim = ClaimReference("team-a", "c", "u-3")
    assert len(allocated_devices(json.dumps(CLAIM).encode(), claim, "a").devices) == 2
    accepting = reviewer(accepted=tuple(PRODUCTS.values()))
    for pod in (HAMI_POD, KAI_POD):
        response = json.loads(asyncio.run(accepting.accept(review("pods", pod))))["response"]
        assert response["allowed"]
        assert response["patch"]


@repeated
@given(mutated(POD))
def test_a_pod(raw: bytes) -> None:
    # Informers skip these with a line in the log.
    for read in (
        decode_record,
        lambda one: counted_record_of(decode_pod(one)),
        decode_policy_pod,
        decode_bound_pod,
    ):
        read_as(read, raw, ValueError, RecursionError)


@repeated
@given(mutated(POLICY))
def test_a_resource_policy(raw: bytes) -> None:
    read_as(decode_keyed_policy, raw, ValueError, RecursionError)


@repeated
@given(mutated(TREE))
def test_an_elastic_quota_tree(raw: bytes) -> None:
    read_as(decode_tree, raw, ValueError, RecursionError)


@repeated
@given(mutated(CLAIMING_POD))
def test_a_pod_that_uses_claims(raw: bytes) -> None:
    for read in (decode_seen, decode_agents_record):
        read_as(read, raw, ValueError, RecursionError)


@repeated
@given(mutated(CLAIM))
def test_a_claim_in_the_dashboard(raw: bytes) -> None:
    shown = Shown()
    shown.add(described("a", gpu("a", 0), gpu("a", 1)))

    def show(one: bytes) -> None:
        key, claim = decode_claim(one)
        shown.cluster.claims.upsert(claim)
        asyncio.run(shown.cluster.refresh())
        claim.requests_of(["gpushare.dev"])
        shown.cluster.claims.remove(key, claim)

    read_as(show, raw, ValueError, RecursionError)


@repeated
@given(mutated(CLAIM))
def test_a_claim_on_its_node(raw: bytes) -> None:
    claim = ClaimReference("team-a", "c", "u-3")

    def prepare(one: bytes) -> None:
        shares_of(claim, allocated_devices(one, claim, "a").devices, [gpu("a", 0), gpu("a", 1)])

    read_as(prepare, raw, AllocationRefused)


#: Values on which careless patterns for lists of models and UUIDs would backtrack.
listed_values = st.builds(
    lambda piece, times, end: (piece * times)[:4096] + end,
    st.sampled_from(["A", "A ", "A,", "A ,", " ", ", ", "GPU-", "GPU-a,", "hopper,", "A-._", "A" + " " * 60]),
    st.integers(0, 4096),
    st.sampled_from(["", "!", ",", " ", "A", "\n"]),
)


@repeated
@given(st.dictionaries(st.sampled_from(sorted(FORMATS)), texts | listed_values, max_size=4))
def test_annotations_that_select_gpus(annotations: dict[str, str]) -> None:
    def select(raw: bytes) -> None:
        if not problem(annotations):
            selection = selection_of(annotations)
            if selection is not None:
                selection.allows(Device(0, "GPU-a", 24 << 10, model="NVIDIA A10", architecture="ampere"))
                for rule in RULES:
                    rule.texts(selection)

    read_as(select, b"")


@pytest.mark.randomized
@pytest.mark.parametrize(
    ("read", "good"),
    [(read_args, FILTER), (read_binding, BIND), (read_preemption, PREEMPT)],
    ids=["filter", "bind", "preempt"],
)
def test_a_body_that_is_sent_to_the_extender(read: Callable[[bytes], object], good: Json) -> None:
    @repeated
    @given(mutated(good) | st.binary(max_size=200))
    def each(raw: bytes) -> None:
        read_as(read, raw, WireError)

    each()


@pytest.mark.randomized
@pytest.mark.parametrize(
    ("path", "templates"),
    [
        ("/accept", None),
        ("/accept", Templates()),
        ("/units", None),
        ("/mutate", None),
        ("/validate", None),
        ("/mistakes", None),
    ],
)
def test_a_review(path: str, templates: Templates | None) -> None:
    app = ReviewApp(reviewer(accepted=tuple(PRODUCTS.values()), claim_templates=templates), Metrics())

    @repeated
    @given(st.one_of(mutated(POD), mutated(HAMI_POD), mutated(KAI_POD)), st.booleans())
    def each(raw: bytes, whole: bool) -> None:
        body = raw if whole else review("pods", json.loads(raw))
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        began_s = time.process_time()
        asyncio.run(app({"path": path, "method": "POST"}, receive, send))
        assert sent[0]["status"] in (200, 400)
        if SOAK:
            assert time.process_time() - began_s < _MOST_S

    each()
