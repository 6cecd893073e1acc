"""Folders that represent cgroups are created and removed with containers."""

from pathlib import Path

from gpushare_playground.kubelet.runtime.cgroups import Cgroups
from gpushare_playground.kubelet.runtime.containers import Attempt

UID = "1c8f4f6e-0000-4000-8000-000000000001"


def started(folder: Path, number: int = 0) -> Attempt:
    attempt = Attempt(folder / "pods" / UID / "main" / str(number), number)
    attempt.folder.mkdir(parents=True)
    return attempt


def test_a_running_container_has_its_own_cgroup_and_sees_which(tmp_path: Path) -> None:
    cgroups, first, second = Cgroups(tmp_path / "cgroup"), started(tmp_path), started(tmp_path, 1)
    environments = [cgroups.enter(one) for one in (first, second)]
    pod = tmp_path / "cgroup" / "kubepods" / "besteffort" / f"pod{UID}"
    assert {one.name for one in pod.iterdir()} == {first.container_id, second.container_id}
    assert (tmp_path / "cgroup" / "cgroup.controllers").exists()
    for attempt, variables in zip((first, second), environments, strict=True):
        assert variables["FAKEGPU_CGROUPS"] == str(tmp_path / "cgroup")
        content = Path(variables["FAKEGPU_PROC"]).read_text()
        assert content == f"0::/kubepods/besteffort/pod{UID}/{attempt.container_id}\n"
    cgroups.leave(first)
    cgroups.leave(first)
    assert [one.name for one in pod.iterdir()] == [second.container_id]
    cgroups.forget(UID)
    cgroups.forget(UID)
    assert not pod.exists()


def test_a_container_starts_without_a_cgroup_where_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("a file")
    assert Cgroups(tmp_path / "cgroup").enter(started(tmp_path)) == {}
