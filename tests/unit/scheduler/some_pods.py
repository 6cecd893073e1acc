"""Pods of every kind, for the whole machine."""

from typing import Any

from hypothesis import strategies as st

from gpushare.api import names
from tests.unit.scheduler.world import pod_object

#: Gangs and how many of each must run together.
GANGS = {"g2": 2, "g3": 3, "g5": 5}
#: The namespaces of their pods: two have elastic quotas, one a ResourcePolicy.
SPACE_OF = {"g2": "x", "g3": "z", "g5": "default"}

#: The owners of the pods: none, or a controller of that kind.
OWNERS = ("", "ReplicaSet", "ReplicaSet", "ReplicaSet", "StatefulSet", "Job", "DaemonSet")


@st.composite
def some_pod(draw: st.DrawFn) -> dict[str, Any]:
    """The request of a new pod, without its name."""
    kind = draw(
        st.sampled_from(
            (
                *("share", "share", "several", "whole", "gpus", "gang", "gang", "pipeline"),
                *("apart", "none", "none"),
            )
        )
    )
    labels: dict[str, str] = {}
    namespace = draw(st.sampled_from(("default", "default", "x", "z")))
    mem: int | None = draw(st.sampled_from((1, 2, 3, 4, 4, 7, 8, 16)))
    core = draw(st.sampled_from((None, None, 30, 50, 100)))
    if kind == "several":
        count = draw(st.sampled_from((2, 3, 4)))
        mem, core = draw(st.sampled_from((1, 2, 4))) * count, None
        labels[names.LABEL_POD_GPU_COUNT] = str(count)
    elif kind == "whole":
        labels[names.LABEL_POD_PLACEMENT] = names.POD_PLACEMENT_WHOLE_DEVICE
    elif kind in ("gpus", "none"):
        mem = core = None
    elif kind == "gang":
        gang = draw(st.sampled_from(sorted(GANGS)))
        labels[names.LABEL_GANG_NAME] = gang
        labels[names.LABEL_GANG_LEAST] = str(GANGS[gang])
        mem = draw(st.sampled_from((2, 4, 7, None)))
        core = None
        namespace = SPACE_OF[gang]
    beside: list[tuple[str, int]] = []
    if kind == "pipeline":
        mem = draw(st.sampled_from((1, 2, 3)))
        beside = draw(
            st.lists(st.tuples(st.sampled_from(("init", "sidecar", "app")), st.integers(1, 4)), max_size=3)
        )
    elif kind == "apart":
        assert mem is not None
        labels[names.LABEL_POD_APART] = "true"
        beside = [("app", mem)] * draw(st.integers(1, 2))
    return {
        "mem": mem,
        "core": core,
        "beside": beside,
        "gpus": draw(st.integers(1, 4)) if kind == "gpus" else None,
        "labels": labels,
        "namespace": namespace,
        "priority": draw(st.sampled_from((0, 0, 10, 1000))),
        "never": draw(st.integers(0, 5)) == 0,
        "cpu": draw(st.sampled_from((0, 1, 1, 2, 4))),
        "owner": draw(st.sampled_from(OWNERS)),
    }


def made_pod(
    name: str,
    uid: str,
    *,
    gpus: int | None,
    beside: list[tuple[str, int]],
    cpu: int = 0,
    owner: str = "",
    **asked: Any,
) -> dict[str, Any]:
    made = pod_object(name, uid=uid, **asked)
    if owner:
        # One of a kind in a namespace: each pod of it may take the place of another.
        reference = {"uid": f"{made['metadata']['namespace']}-{owner}", "kind": owner, "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    spec = made["spec"]
    spec["schedulerName"] = names.SCHEDULER_NAME
    if cpu:
        spec["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    if gpus is not None:
        spec["containers"][0]["resources"]["limits"][names.GPU_WHOLE] = gpus
    for number, (kind, mem) in enumerate(beside):
        limits = dict(spec["containers"][0]["resources"]["limits"]) | {names.GPU_MEM: mem}
        container = {"name": f"{kind}-{number}", "resources": {"limits": limits}}
        if kind == "sidecar":
            container["restartPolicy"] = "Always"
        spec.setdefault("containers" if kind == "app" else "initContainers", []).append(container)
    return made
