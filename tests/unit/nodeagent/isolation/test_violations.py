"""Which container a process belongs to, which exceeds its share, and what others hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.node.modes import MODES
from gpushare.api.node.overuse_threshold import SLACK_MIB
from gpushare.nodeagent.isolation.backend_selection import backing
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.watchdog.cgroups import OUTSIDE, Owner, container_cgroup, owner
from gpushare.nodeagent.isolation.watchdog.violations import (
    FOREIGN_LEAST_MIB,
    UNLISTED_MIB,
    Foreign,
    ForeignBook,
    GpuMemory,
    GpuProcess,
    Holder,
    Overuse,
    Seen,
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
def test_containers_are_identified_by_their_cgroup(path: str) -> None:
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
def test_other_cgroups_are_not_of_kubernetes(path: str) -> None:
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
def test_a_containers_own_cgroup_is_found_whatever_its_processes_create_below_it(
    path: str, below: str
) -> None:
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
def test_without_a_container_or_cgroup_version_2_there_is_no_such_cgroup(text: str) -> None:
    assert container_cgroup(text) is None


def test_pods_from_the_kubelets_own_files_have_uids_of_another_form() -> None:
    assert owner(f"0::/kubepods/besteffort/pod{'ab' * 16}/{CONTAINER}\n") == Owner("ab" * 16, CONTAINER)


A = Holder("default/a", "ua", "c", "GPU-0", 2154, 30)
B = Holder("default/b", "ub", "c", "GPU-0", 1000, 0)
OWNERS = {
    1: Owner("ua", "x"),
    2: Owner("ua", "x"),
    3: Owner("ub", "y"),
    4: OUTSIDE,
    5: Owner("nobody", "z"),
    6: None,
}


def holder_of(process_owner: Owner, gpu: str) -> Holder | None:
    return {("ua", "GPU-0"): A, ("ub", "GPU-0"): B}.get((process_owner.pod_uid, gpu))


def sample(
    *processes: GpuProcess, used_mib: int | None = None, allocated_mib: int = 0, enforced: bool = False
) -> Seen:
    gpus = {"GPU-0": GpuMemory(used_mib, allocated_mib), "GPU-1": GpuMemory(None, 0)}
    return seen(processes, OWNERS, holder_of, gpus, enforced=enforced)


def test_use_is_summed_by_holder_and_the_rest_is_foreign() -> None:
    found = sample(
        GpuProcess("GPU-0", 1, 100, 10),
        GpuProcess("GPU-0", 2, 200, -1),
        GpuProcess("GPU-0", 3, -1, 50),
        GpuProcess("GPU-0", 4, 300),
        GpuProcess("GPU-0", 5, 500),
        GpuProcess("GPU-0", 6, 5000),
        GpuProcess("GPU-1", 1, 700),
    )
    assert [(use.holder, use.mib, use.unreported, use.sm_percent, use.pids) for use in found.uses] == [
        (A, 300, 0, 10, [1, 2]),
        (B, 0, 1, 50, [3]),
    ]
    assert found.foreign["GPU-0"].total_mib == found.foreign["GPU-0"].certain_mib == 800
    assert found.foreign["GPU-0"].pids == {OUTSIDE: [4], Owner("nobody", "z"): [5]}
    # A GPU that is not allocated to a pod is foreign to it, even if it holds another.
    assert found.foreign["GPU-1"].pids == {Owner("ua", "x"): [1]}


def test_memory_of_an_ended_process_is_foreign_as_long_as_the_driver_lists_it() -> None:
    found = sample(GpuProcess("GPU-0", 99, 9000)).foreign["GPU-0"]
    assert (found.total_mib, found.certain_mib, found.ended_pids) == (9000, 0, [99])


# The driver takes 16 MiB for each process beyond what it lists.
@pytest.mark.parametrize(
    ("used_mib", "unlisted_mib"), [(None, 0), (5900, 0), (5948, 0), (5949, 1), (9948, 4000)]
)
def test_memory_that_the_driver_counts_but_lists_for_no_process_is_foreign(
    used_mib: int | None, unlisted_mib: int
) -> None:
    listed = [GpuProcess("GPU-0", pid, mib) for pid, mib in ((1, 900), (6, 3000), (4, 2000))]
    foreign = sample(*listed, used_mib=used_mib, allocated_mib=3154).foreign["GPU-0"]
    assert foreign.unlisted_mib == unlisted_mib
    assert foreign.total_mib == 2000 + unlisted_mib
    assert foreign.certain_mib == 2000


def test_unknown_memory_of_a_holder_is_its_own_up_to_its_share() -> None:
    listed = [GpuProcess("GPU-0", 1, -1), GpuProcess("GPU-0", 3, 400)]
    assert sample(*listed, used_mib=2154 + 400).foreign["GPU-0"].total_mib == 0
    assert sample(*listed, used_mib=2154 + 400 + 32 + 1000).foreign["GPU-0"].total_mib == 1000


def test_if_the_driver_lists_no_process_memory_is_the_pods_up_to_their_shares() -> None:
    assert sample(used_mib=3000, allocated_mib=3154).foreign["GPU-0"].total_mib == 0
    assert sample(used_mib=9000, allocated_mib=3154).foreign["GPU-0"].total_mib == 9000 - 3154


@pytest.mark.parametrize(("enforced", "excess_mib"), [(True, 1846), (False, 0)])
def test_memory_above_a_share_is_foreign_where_shares_are_enforced(enforced: bool, excess_mib: int) -> None:
    listed = [GpuProcess("GPU-0", 1, 4000), GpuProcess("GPU-0", 3, 1010)]
    foreign = sample(*listed, used_mib=5010, allocated_mib=3154, enforced=enforced).foreign["GPU-0"]
    assert foreign.total_mib == foreign.certain_mib == excess_mib
    assert foreign.excess_by == (["pod default/a"] if enforced else [])


@pytest.mark.parametrize("enforced", [True, False])
@given(data=st.data())
def test_what_can_be_allocated_is_never_more_than_the_driver_has_free(
    data: st.DataObject, enforced: bool
) -> None:
    """Except for overhead per process, amounts too little to be published, and, without enforcement, use above shares."""
    total_mib, allocated_mib = 15360, A.mib + B.mib
    processes = [
        GpuProcess("GPU-0", pid, data.draw(st.integers(-1, 4000)))
        for pid in data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 99]), unique=True))
    ]
    listed_mib = sum(max(process.mib, 0) for process in processes)
    used_mib = data.draw(st.integers(min(listed_mib, total_mib), total_mib))
    found = sample(*processes, used_mib=used_mib, allocated_mib=allocated_mib, enforced=enforced)
    published_mib = ForeignBook().take("GPU-0", found.foreign["GPU-0"])
    above_mib = sum(max(use.mib - use.holder.mib, 0) for use in found.uses)
    allowance_mib = UNLISTED_MIB * len(processes) + FOREIGN_LEAST_MIB
    allowance_mib += SLACK_MIB * len(found.uses) if enforced else above_mib
    assert total_mib - allocated_mib - published_mib <= total_mib - used_mib + allowance_mib


def judged(overuse: Overuse, now_s: float, *uses: tuple[Holder, int, int]) -> list[tuple[str, str, bool]]:
    found = overuse.judge([Use(holder, mib, sm) for holder, mib, sm in uses], now_s)
    return [(one.what, one.use.holder.pod, one.due) for one in found]


def test_memory_is_reported_immediately_and_due_after_the_grace_period() -> None:
    overuse = Overuse(30.0)
    assert judged(overuse, 0.0, (A, 2154 + 16, 0)) == []
    assert judged(overuse, 5.0, (A, 2154 + 17, 0)) == [("memory", "default/a", False)]
    assert judged(overuse, 34.0, (A, 5000, 0)) == []
    assert judged(overuse, 35.0, (A, 5000, 0), (B, 5000, 0)) == [
        ("memory", "default/a", True),
        ("memory", "default/b", False),
    ]
    # It goes on: reported again a grace period later.
    assert judged(overuse, 64.0, (A, 5000, 0)) == []
    assert judged(overuse, 65.0, (A, 5000, 0)) == [("memory", "default/a", True)]


def test_falling_below_the_share_in_between_restarts_the_grace_period() -> None:
    overuse = Overuse(30.0)
    judged(overuse, 0.0, (A, 5000, 0))
    assert judged(overuse, 20.0, (A, 2000, 0)) == []
    assert judged(overuse, 40.0, (A, 5000, 0)) == [("memory", "default/a", False)]


def test_a_pod_alternating_around_its_share_is_reported_once_per_grace_period() -> None:
    overuse = Overuse(30.0)
    found_each_second = [judged(overuse, at_s, (A, 5000 if at_s % 2 else 100, 0)) for at_s in range(61)]
    assert [at_s for at_s, found in enumerate(found_each_second) if found] == [1, 31]


def test_a_pod_above_its_share_most_of_the_time_is_due_despite_short_dips() -> None:
    overuse = Overuse(30.0)
    due = [
        at_s
        for at_s in range(0, 300, 5)
        if ("memory", "default/a", True) in judged(overuse, at_s, (A, 100 if at_s % 30 == 25 else 5000, 0))
    ]
    assert due
    assert due[0] <= 60
    # A pod that is below for as long as it is above is never due.
    overuse = Overuse(30.0)
    for at_s in range(0, 300, 5):
        found = judged(overuse, at_s, (A, 100 if at_s % 50 >= 25 else 5000, 0))
        assert ("memory", "default/a", True) not in found


def continued(before: Overuse, now_s: float) -> Overuse:
    overuse = Overuse(30.0)
    overuse.restore(before.states(), now_s)
    return overuse


def test_another_process_continues_the_grace_period_and_adds_no_unwatched_time() -> None:
    overuse = Overuse(30.0)
    judged(overuse, 0.0, (A, 5000, 0))
    judged(overuse, 25.0, (A, 5000, 0))
    overuse = continued(overuse, 45.0)
    # It was reported by the previous process.
    assert judged(overuse, 46.0, (A, 5000, 0)) == []
    assert judged(overuse, 50.0, (A, 5000, 0)) == [("memory", "default/a", True)]


def test_after_a_long_time_without_a_watchdog_the_grace_period_restarts() -> None:
    overuse = Overuse(30.0)
    judged(overuse, 0.0, (A, 5000, 0))
    judged(overuse, 25.0, (A, 5000, 0))
    overuse = continued(overuse, 25.0 + 30.0 + 25.0)
    assert judged(overuse, 81.0, (A, 5000, 0)) == [("memory", "default/a", False)]
    assert judged(overuse, 110.0, (A, 5000, 0)) == []
    assert judged(overuse, 111.0, (A, 5000, 0)) == [("memory", "default/a", True)]


def test_compute_is_reported_only_if_it_lasts_and_was_allocated() -> None:
    overuse = Overuse(30.0)
    assert judged(overuse, 0.0, (A, 0, 99), (B, 0, 99)) == []
    assert judged(overuse, 30.0, (A, 0, 41), (B, 0, 99)) == [("compute", "default/a", True)]
    assert judged(overuse, 60.0, (A, 0, 40)) == []


def published(book: ForeignBook, certain_mib: int = 0, unlisted_mib: int = 0) -> int:
    return book.take("GPU-0", Foreign(certain_mib, unlisted_mib=unlisted_mib))


def test_memory_held_by_others_rises_immediately_and_falls_slowly() -> None:
    book = ForeignBook()
    assert [published(book, mib) for mib in (63, 65, 100, 1000)] == [0, 128, 128, 1024]
    # The most of the samples that found less.
    assert [published(book, mib) for mib in (100, 0, 200, 0, 0, 0)] == [1024, 1024, 256, 256, 256, 0]
    assert book.published("GPU-0") == 0
    assert book.published("GPU-1") == 0


def test_what_may_be_transient_rises_only_if_it_lasts() -> None:
    book = ForeignBook()
    published(book)
    assert [published(book, 0, mib) for mib in (9000, 0, 9000, 8000, 9000)] == [0, 0, 0, 0, 8000]
    assert published(book, 8500, 0) == 8512


def test_memory_left_behind_by_an_ended_process_changes_nothing() -> None:
    book = ForeignBook()
    held = [published(book, 9000) for _ in range(3)] + [published(book, 0, 9000) for _ in range(5)]
    assert set(held) == {9024}


def test_the_first_sample_counts_in_full() -> None:
    assert published(ForeignBook(), 0, 9000) == 9024


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
def test_mode_and_requested_isolation_decide_the_backing(asked: str, mode: str, kind: str) -> None:
    chosen = backing(AskedIsolation(asked), MODES[mode])
    assert chosen.kind == kind
    assert f"mode {mode}" in chosen.why


def test_containers_that_may_use_idle_compute_never_exceed_their_share() -> None:
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
