"""Whose processes are, who is above their share, and what others hold."""

import pytest

from gpushare.api.node.modes import MODES
from gpushare.nodeagent.isolation.backend_selection import backing
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.watchdog.cgroups import OUTSIDE, Owner, container_cgroup, owner
from gpushare.nodeagent.isolation.watchdog.violations import (
    ForeignBook,
    GpuProcess,
    Holder,
    Overuse,
    Use,
    by_limit,
    seen,
)

UID = "2f1c3a5e-0d6b-4c2a-9a57-0b8f2f1d7e12"
LOW = UID.replace("-", "_")
CONTAINER = "0a1b2c3d" * 8


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{CONTAINER}",
        f"/kubepods/pod{UID}/{CONTAINER}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{LOW}.slice/cri-containerd-{CONTAINER}.scope",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-{CONTAINER}.scope",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/docker-{CONTAINER}.scope/system.slice/inner.service",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{LOW}.slice/cri-containerd-{CONTAINER}.scope",
        f"/docker/{'f' * 64}/kubelet/kubepods/besteffort/pod{UID}/{CONTAINER}",
        f"/system.slice/containerd.service/kubepods-burstable-pod{LOW}.slice:cri-containerd:{CONTAINER}",
        f"/../pod{UID}/{CONTAINER}",
        f"/../../kubepods-burstable-pod{LOW}.slice/cri-containerd-{CONTAINER}.scope",
    ],
)
def test_containers_are_known_by_their_cgroup(path: str) -> None:
    assert owner(f"0::{path}\n") == Owner(UID, CONTAINER)
    first = f"12:pids:{path}\n11:devices:{path}\n1:name=systemd:{path}\n0::/\n"
    assert owner(first) == Owner(UID, CONTAINER)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/user.slice/user-1000.slice/session-3.scope",
        f"/system.slice/docker-{CONTAINER}.scope",
        f"/machine.slice/libpod-{CONTAINER}.scope/container",
        f"/machine.slice/machine-libpod_pod_{CONTAINER}.slice",
        "/kubepods",
    ],
)
def test_others_are_not_of_kubernetes(path: str) -> None:
    assert owner(f"0::{path}\n") == OUTSIDE
    assert owner("") == OUTSIDE


@pytest.mark.parametrize("below", ["", "/", "/system.slice/inner.service", f"/pod{UID[::-1]}/{'f' * 64}"])
@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{CONTAINER}",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/cri-containerd-{CONTAINER}.scope",
        f"/docker/{'f' * 64}/kubelet/kubepods/besteffort/pod{UID}/{CONTAINER}",
        f"/system.slice/containerd.service/kubepods-burstable-pod{LOW}.slice:cri-containerd:{CONTAINER}",
    ],
)
def test_a_containers_own_cgroup_is_found_whatever_its_processes_make_below_it(path: str, below: str) -> None:
    other = f"4:memory:/kubepods/pod{UID}/{'e' * 64}\n"
    assert container_cgroup(f"{other}0::{path}{below}\n") == (Owner(UID, CONTAINER), path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/sshd.service\n",
        f"0::/kubepods/pod{UID}\n",
        f"4:memory:/kubepods/pod{UID}/{CONTAINER}\n0::/\n",
    ],
)
def test_without_a_container_or_version_2_there_is_no_such_cgroup(text: str) -> None:
    assert container_cgroup(text) is None


def test_pods_of_the_kubelets_own_files_have_uids_of_another_form() -> None:
    assert owner(f"0::/kubepods/besteffort/pod{'ab' * 16}/{CONTAINER}\n") == Owner("ab" * 16, CONTAINER)


A = Holder("default/a", "ua", "c", "GPU-0", 2154, 30)
B = Holder("default/b", "ub", "c", "GPU-0", 1000, 0)
OWNERS = {1: Owner("ua", "x"), 2: Owner("ua", "x"), 3: Owner("ub", "y"), 4: OUTSIDE, 5: Owner("nobody", "z")}


def holder_of(whose: Owner, gpu: str) -> Holder | None:
    return {("ua", "GPU-0"): A, ("ub", "GPU-0"): B}.get((whose.pod_uid, gpu))


def test_uses_are_added_up_by_holder_and_the_rest_is_foreign() -> None:
    found = seen(
        [
            GpuProcess("GPU-0", 1, 100, 10),
            GpuProcess("GPU-0", 2, 200, -1),
            GpuProcess("GPU-0", 3, -1, 50),
            GpuProcess("GPU-0", 4, 300),
            GpuProcess("GPU-0", 5, 500),
            GpuProcess("GPU-0", 99, 9000),
            GpuProcess("GPU-1", 1, 700),
        ],
        OWNERS,
        holder_of,
    )
    assert [(use.holder, use.mib, use.untold, use.sm_percent, use.pids) for use in found.uses] == [
        (A, 300, 0, 10, [1, 2]),
        (B, 0, 1, 50, [3]),
    ]
    assert found.foreign["GPU-0"].mib == 800
    assert found.foreign["GPU-0"].pids == {OUTSIDE: [4], Owner("nobody", "z"): [5]}
    # A GPU that was not given to it is foreign to a pod that holds another.
    assert found.foreign["GPU-1"].pids == {Owner("ua", "x"): [1]}


def judged(overuse: Overuse, now_s: float, *uses: tuple[Holder, int, int]) -> list[tuple[str, str, bool]]:
    found = overuse.judge([Use(holder, mib, sm) for holder, mib, sm in uses], now_s)
    return [(one.what, one.use.holder.pod, one.due) for one in found]


def test_memory_is_told_at_once_and_due_after_the_grace() -> None:
    overuse = Overuse(30.0)
    assert judged(overuse, 0.0, (A, 2154 + 16, 0)) == []
    assert judged(overuse, 5.0, (A, 2154 + 17, 0)) == [("memory", "default/a", False)]
    assert judged(overuse, 34.0, (A, 5000, 0)) == []
    assert judged(overuse, 35.0, (A, 5000, 0), (B, 5000, 0)) == [
        ("memory", "default/a", True),
        ("memory", "default/b", False),
    ]
    # It goes on: told again a grace period later.
    assert judged(overuse, 64.0, (A, 5000, 0)) == []
    assert judged(overuse, 65.0, (A, 5000, 0)) == [("memory", "default/a", True)]


def test_who_comes_below_in_between_begins_anew() -> None:
    overuse = Overuse(30.0)
    judged(overuse, 0.0, (A, 5000, 0))
    assert judged(overuse, 20.0, (A, 2000, 0)) == []
    assert judged(overuse, 40.0, (A, 5000, 0)) == [("memory", "default/a", False)]


def test_who_goes_up_and_down_is_told_once_a_grace() -> None:
    overuse = Overuse(30.0)
    told = [judged(overuse, at_s, (A, 5000 if at_s % 2 else 100, 0)) for at_s in range(61)]
    assert [at_s for at_s, found in enumerate(told) if found] == [1, 31]


def test_who_is_above_most_of_the_time_is_due_though_it_comes_below_before_each_grace_is_over() -> None:
    overuse = Overuse(30.0)
    due = [
        at_s
        for at_s in range(0, 300, 5)
        if ("memory", "default/a", True) in judged(overuse, at_s, (A, 100 if at_s % 30 == 25 else 5000, 0))
    ]
    assert due
    assert due[0] <= 60
    # And one that is below for as long as it is above never is.
    overuse = Overuse(30.0)
    for at_s in range(0, 300, 5):
        found = judged(overuse, at_s, (A, 100 if at_s % 50 >= 25 else 5000, 0))
        assert ("memory", "default/a", True) not in found


def test_compute_is_told_only_when_it_lasts_and_only_where_it_was_given() -> None:
    overuse = Overuse(30.0)
    assert judged(overuse, 0.0, (A, 0, 99), (B, 0, 99)) == []
    assert judged(overuse, 30.0, (A, 0, 41), (B, 0, 99)) == [("compute", "default/a", True)]
    assert judged(overuse, 60.0, (A, 0, 40)) == []


def test_what_others_hold_rises_at_once_and_falls_slowly() -> None:
    book = ForeignBook()
    assert not book.take({"GPU-0": 63})
    assert book.take({"GPU-0": 65})
    assert book.published("GPU-0") == 128
    assert not book.take({"GPU-0": 100})
    assert book.take({"GPU-0": 1000})
    assert book.published("GPU-0") == 1024
    assert not book.take({"GPU-0": 100})
    assert not book.take({})
    assert book.take({"GPU-0": 200})
    # The most of the looks that found less.
    assert book.published("GPU-0") == 256
    for _ in range(2):
        assert not book.take({})
    assert book.take({})
    assert book.published("GPU-0") == 0


@pytest.mark.parametrize(
    ("asked", "mode", "kind"),
    [
        ("none", "cgpu", "none"),
        ("auto", "share", "none"),
        ("mps", "share", "none"),
        ("preload", "topology", "none"),
        ("auto", "cgpu", "preload"),
        ("auto", "core_mem", "preload"),
        ("auto", "mps", "mps"),
        ("preload", "mps", "preload"),
        ("mps", "core_mem", "mps"),
        ("driver", "cgpu", "driver"),
        ("driver", "mps", "driver"),
        ("driver", "share", "none"),
    ],
)
def test_the_mode_and_what_was_asked_for_decide(asked: str, mode: str, kind: str) -> None:
    chosen = backing(AskedIsolation(asked), MODES[mode])
    assert chosen.kind == kind
    assert f"mode {mode}" in chosen.why


def test_containers_that_may_use_idle_compute_are_above_no_share() -> None:
    hard, idle, node = (
        Use(A._replace(uid=policy or "node", core_policy=policy), 100, 90)
        for policy in ("hard", "idle", None)
    )
    for of_node, expected in (("hard", [hard, node]), ("idle", [hard])):
        overuse = Overuse(10.0, of_node)  # type: ignore[arg-type]
        overuse.judge([hard, idle, node], 0.0)
        assert [finding.use for finding in overuse.judge([hard, idle, node], 11.0)] == expected


def test_containers_of_one_claim_have_one_limit() -> None:
    first, second = (
        Use(Holder(f"default/{pod}", f"u{pod}", "c", "GPU-0", 3072, 30, "default/shared"), 2000, 20, [pid])
        for pod, pid in (("a", 1), ("b", 2))
    )
    own = Use(B, 10, 0, [3])
    other = Use(first.holder._replace(gpu="GPU-1"), 5, 0, [1])
    alone, joint, apart = by_limit([first, own, second, other])
    assert alone is own
    assert (joint.mib, joint.sm_percent, joint.pids, joint.holder.claim) == (
        4000,
        40,
        [1, 2],
        "default/shared",
    )
    assert (apart.mib, apart.holder.gpu) == (5, "GPU-1")
    assert (first.mib, first.pids) == (2000, [1]), "what each uses stays known"
    assert [finding.use.mib for finding in Overuse(10.0).judge([joint, own, apart], 0.0)] == [4000]
