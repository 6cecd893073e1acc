"""Suggestions for a pod that would not fit even on an empty node."""

import msgspec
import pytest

from gpushare.api.names import ANN_REQUESTED, LABEL_POD_GPU_COUNT
from gpushare.api.node.modes import NodeMode
from tests.unit.scheduler.explain.test_decisions import GIB, ask, ask_again, bind, give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object


@pytest.mark.parametrize(
    ("limits", "labels", "suggestion"),
    [
        ({"aliyun.com/gpu-mem": 99}, {}, "a node with larger GPUs; or request less"),
        (
            {"aliyun.com/gpu-mem": 9},
            {LABEL_POD_GPU_COUNT: "3"},
            "a node with 3 GPUs or more of the requested size; or request less",
        ),
        (
            {"aliyun.com/gpu-mem": 198},
            {LABEL_POD_GPU_COUNT: "2"},
            "a node with 2 GPUs or more of the requested size; or request less",
        ),
        ({"aliyun.com/gpu": 3}, {}, "a node with 3 GPUs or more; or request fewer"),
    ],
)
async def test_more_gpus_are_suggested_only_to_pods_that_they_help(
    browser: Browser, world: World, limits: dict[str, int], labels: dict[str, str], suggestion: str
) -> None:
    mode = NodeMode.TOPOLOGY if "aliyun.com/gpu" in limits else NodeMode.SHARE
    world.add_node(gpu_node("n1", 8 * GIB, 8 * GIB, mode=mode))
    pod = pod_object("waits", labels=labels)
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    world.api.create(pod)
    world.see("waits")
    await ask_again(browser, world, "waits", "n1")

    (one,) = world.decisions.waiting()

    assert (one.category, one.suggestion) == ("size", suggestion)


def divided(count: int) -> str:
    return (
        "a node with larger GPUs; or request less, "
        f'or label the pod aliyun.com/gpu-count: "{count}", to spread it over {count} GPUs of one node'
    )


PLAIN = "a node with larger GPUs; or request less"


@pytest.mark.parametrize(
    ("mems", "labels", "sizes", "mode", "suggestion"),
    [
        ([20], {}, [15, 15], NodeMode.SHARE, divided(2)),
        ([20], {}, [8, 8, 8, 8], NodeMode.SHARE, divided(4)),
        ([20], {"ack.gpushare.placement": "require-whole-device"}, [15, 15], NodeMode.SHARE, divided(2)),
        ([20], {}, [15, 8], NodeMode.SHARE, PLAIN),
        ([21], {}, [15, 15], NodeMode.SHARE, PLAIN),
        ([21], {}, [15, 15, 15], NodeMode.SHARE, divided(3)),
        ([20, 2], {}, [15, 15], NodeMode.SHARE, divided(2)),
        ([19, 1], {}, [15, 15], NodeMode.SHARE, PLAIN),
        ([20], {}, [15, 15], NodeMode.MPS, PLAIN),
        ([20], {}, [15, 15], NodeMode.CGPU, divided(2)),
        ([20, 20], {"gpushare.dev/gpu-per-container": "true"}, [15] * 4, NodeMode.SHARE, None),
    ],
)
async def test_a_share_of_several_gpus_is_suggested_if_an_existing_node_would_hold_it(
    browser: Browser,
    world: World,
    mems: list[int],
    labels: dict[str, str],
    sizes: list[int],
    mode: NodeMode,
    suggestion: str | None,
) -> None:
    world.add_node(gpu_node("n1", *(size * GIB for size in sizes), mode=mode))
    pod = pod_object("waits", labels=labels)
    first = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [
        {**first, "name": f"c{number}", "resources": {"limits": {"aliyun.com/gpu-mem": mem}}}
        for number, mem in enumerate(mems)
    ]
    world.api.create(pod)
    world.see("waits")
    await ask_again(browser, world, "waits", "n1")

    (one,) = world.decisions.waiting()

    assert one.category == "size"
    assert one.suggestion == suggestion if suggestion is not None else "gpu-count" not in one.suggestion


def labelled(count: int, once: str = "") -> str:
    return (
        f'a node in mode share with larger GPUs; or request less, or label the pod aliyun.com/gpu-count: "{count}", to spread '
        f"it over {count} GPUs of one node, and `kubectl label node n1 ack.node.gpu.schedule=share --overwrite`{once}"
    )


@pytest.mark.parametrize(
    ("limits", "sizes", "suggestion"),
    [
        ({"aliyun.com/gpu-mem": 20}, [15, 15], labelled(2)),
        ({"aliyun.com/gpu-mem": 21}, [15, 15], "a node in mode share with larger GPUs; or request less"),
        ({"aliyun.com/gpu-mem": 20}, [8, 8, 8, 8], labelled(4)),
        (
            {"aliyun.com/gpu-mem": 20, "aliyun.com/gpu-core.percentage": 50},
            [15, 15],
            "a node in mode core_mem with larger GPUs; or request less",
        ),
        (
            {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-core.percentage": 120},
            [15, 15],
            "request at most 100% compute, all containers together: no GPU has more",
        ),
        ({"aliyun.com/gpu": 3}, [15, 15], "a node in mode topology with 3 GPUs or more; or request fewer"),
        (
            {"aliyun.com/gpu-mem": 15360},
            [15, 15],
            "15360 looks like MiB: write aliyun.com/gpu-mem: 15, or gpushare.dev/gpu-memory: 15360Mi",
        ),
    ],
)
async def test_a_pod_too_large_for_nodes_in_another_mode_is_advised_as_for_those_in_its_own(
    browser: Browser, world: World, limits: dict[str, int], sizes: list[int], suggestion: str
) -> None:
    mode = NodeMode.SHARE if "aliyun.com/gpu" in limits else NodeMode.TOPOLOGY
    world.add_node(gpu_node("n1", *(size * GIB for size in sizes), mode=mode))
    pod = pod_object("waits")
    halves = (
        [{name: amount // 2 for name, amount in limits.items()}] * 2 if 120 in limits.values() else [limits]
    )
    first = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [
        {**first, "name": f"c{number}", "resources": {"limits": its}} for number, its in enumerate(halves)
    ]
    world.api.create(pod)
    world.see("waits")
    await ask_again(browser, world, "waits", "n1")

    (one,) = world.decisions.waiting()

    assert (one.category, one.suggestion) == ("node", suggestion)


async def test_a_node_for_a_divided_pod_has_to_be_emptied_first_if_its_gpus_are_held(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 15 * GIB, 15 * GIB, mode=NodeMode.TOPOLOGY))
    pod = pod_object("there")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": 1}
    world.api.create(pod)
    world.see("there")
    await ask_again(browser, world, "there", "n1")
    await bind(browser, "there", "n1")
    world.see("there")
    await ask(browser, world, "waits", "n1", mem=20)

    (one,) = world.decisions.waiting()

    assert one.suggestion == labelled(2, ", which helps once its 1 pod has ended")


async def test_a_pod_in_a_unit_that_no_node_counts_in_is_not_helped_by_another_mode(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 15 * GIB, mode=NodeMode.TOPOLOGY))
    noted = {"unitMib": 128, "cardMib": 0, "containers": {"c": "2560Mi"}}
    annotations = {ANN_REQUESTED: msgspec.json.encode(noted).decode()}
    world.api.create(pod_object("waits", 20, annotations=annotations))
    world.see("waits")
    await ask_again(browser, world, "waits", "n1")

    (one,) = world.decisions.waiting()

    assert one.suggestion == "delete the pod, so that it is recreated in the unit of the nodes"


async def test_no_division_is_suggested_that_only_gpus_out_of_service_would_hold(
    browser: Browser, world: World
) -> None:
    node = gpu_node("n1", 15 * GIB, 15 * GIB)
    broken = msgspec.structs.replace(node.devices[1], healthy=False)
    world.add_node(msgspec.structs.replace(node, devices=(node.devices[0], broken)))
    await ask(browser, world, "waits", "n1", mem=20)

    (one,) = world.decisions.waiting()

    assert (one.category, one.suggestion) == ("size", PLAIN)


@pytest.mark.parametrize(("core", "also_lacks"), [(60, ", which has 50% compute free"), (50, ""), (40, "")])
async def test_the_nearest_gpu_is_listed_with_its_lack_of_compute(
    browser: Browser, world: World, core: int, also_lacks: str
) -> None:
    world.add_node(gpu_node("n1", 16 * GIB, mode=NodeMode.CORE_MEM))
    await give(browser, world, "there", "n1", 6, core=50)
    await ask(browser, world, "waits", "n1", mem=14, core=core)

    (one,) = world.decisions.waiting()

    assert one.suggestion == (
        f"a GPU with 14 GiB and {core}% compute free: the closest has 10 GiB free, GPU 0 of node n1{also_lacks}; "
        "deleting pod default/there (6 GiB and 50%) would be enough"
    )


@pytest.mark.parametrize(
    ("written", "suggestion", "end"),
    [
        ("1Gi", "write aliyun.com/gpu-mem as a number of units, without Mi or Gi", "without Mi or Gi"),
        (
            "8192",
            "8192 looks like MiB: write aliyun.com/gpu-mem: 8, or gpushare.dev/gpu-memory: 8192Mi",
            "and not of MiB",
        ),
        (
            "5000",
            "5000 looks like MiB: write aliyun.com/gpu-mem: 5, or gpushare.dev/gpu-memory: 5000Mi",
            "and not of MiB",
        ),
    ],
)
async def test_a_request_in_bytes_or_mib_is_corrected_where_nodes_differ_in_size(
    browser: Browser, world: World, written: str, suggestion: str, end: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.add_node(gpu_node("n2", 15 * GIB))
    pod = pod_object("waits")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": written}
    world.api.create(pod)
    world.see("waits")
    await ask_again(browser, world, "waits", "n1", "n2")

    (one,) = world.decisions.waiting()
    assert one.suggestion == suggestion
    assert one.reason.endswith(f" GiB (aliyun.com/gpu-mem is a number of units of 1 GiB, {end})")
    assert one.reason.count("units of 1 GiB") == 1


@pytest.mark.parametrize("sizes", [(8, 8), (8, 15), (8, 10, 12, 14, 15, 16), (8, 0)])
async def test_the_line_of_a_request_in_bytes_mentions_units_once_whatever_the_nodes(
    browser: Browser, world: World, sizes: tuple[int, ...]
) -> None:
    nodes = [f"n{number}" for number in range(len(sizes))]
    for node, size in zip(nodes, sizes, strict=True):
        world.add_node(gpu_node(node, *[size * GIB] * bool(size)))
    pod = pod_object("waits")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "1Gi"}
    world.api.create(pod)
    world.see("waits")
    pending = world.decisions.waiting()
    await ask_again(browser, world, "waits", *nodes)

    for (one,) in (pending, world.decisions.waiting()):
        assert one.reason.count("(aliyun.com/gpu-mem is a number of units of 1 GiB, without Mi or Gi)") == 1
