"""What is written for an isolated container, and when it is removed."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.nodeagent.isolation.storage import directories as module
from gpushare.nodeagent.isolation.storage.allowance_file import read_allowance, write_allowance
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES, Directories
from gpushare.nodeagent.isolation.storage.files import (
    MOST_GPUS,
    Claimed,
    claim_text,
    fingerprint,
    limits_text,
    read_claim,
)
from gpushare.nodeagent.isolation.storage.in_use import Kept, unused

C_SOURCES = Path(__file__).parents[4] / "isolation"


def claimed(uid: str = "u1", container: str = "c", ids: str = "1", **more: Any) -> Claimed:
    return Claimed("default/p", uid, container, "GPU-a", 2154, fingerprint([ids]), **more)


def test_limits_are_bytes_of_whole_mib_and_compute_appears_only_if_it_is_limited() -> None:
    assert limits_text(claimed(), "hard") == (
        b"gpushare-limits 1.2\ncontainer default/p/c u1\ngpu GPU-a memory_bytes=2258632704\n"
    )
    assert limits_text(claimed(core_percent=30), "idle").endswith(b" core_percent=30 core_policy=idle\n")


def test_the_workload_type_appears_only_with_compute() -> None:
    text = limits_text(claimed(core_percent=30, compute_class="latency", more={"GPU-b": 1}), "hard").decode()
    for line in text.splitlines()[2:]:
        assert line.endswith(" core_percent=30 core_policy=hard core_class=latency")
    assert b"core_class" not in limits_text(claimed(compute_class="latency"), "hard")
    assert read_claim(claim_text(claimed(compute_class="batch"))) == claimed(compute_class="batch")
    assert b"class" not in claim_text(claimed())


def test_limits_have_a_line_for_each_gpu() -> None:
    assert limits_text(claimed(more={"GPU-b": 1, "GPU-c": 2}), "hard").decode().splitlines()[2:] == [
        "gpu GPU-a memory_bytes=2258632704",
        "gpu GPU-b memory_bytes=1048576",
        "gpu GPU-c memory_bytes=2097152",
    ]
    assert f"LIMITED_GPUS_MAX = {MOST_GPUS}," in (C_SOURCES / "files" / "limits.h").read_text()


def test_a_claim_on_several_gpus_is_read_by_agents_that_knew_of_one() -> None:
    several = claimed(more={"GPU-b": 1})
    assert read_claim(claim_text(several)) == several
    assert several.mib_by_gpu == {"GPU-a": 2154, "GPU-b": 1}
    written = json.loads(claim_text(several))
    assert (written["gpu"], written["mib"], written.get("version", 1)) == ("GPU-a", 2154, 1)
    assert b"more" not in claim_text(claimed())


def test_a_claim_is_read_as_it_was_written_and_nothing_else_is() -> None:
    assert read_claim(claim_text(claimed(core_percent=30, library="ab"))) == claimed(
        core_percent=30, library="ab"
    )
    for broken in (b"", b"{", b"[]", b"\xff", claim_text(claimed(version=2))):
        assert read_claim(broken) is None


def test_equal_sets_of_ids_have_one_fingerprint() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(iter(["b", "a"])) != fingerprint(["ab"])


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_usage_file_is_as_large_as_in_the_library(tmp_path: Path) -> None:
    program = tmp_path / "region-size"
    subprocess.run(
        ["cc", "-std=c11", f"-I{C_SOURCES}", "-o", program, C_SOURCES / "files" / "region_size.c"], check=True
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert int(output) == USAGE_BYTES


def test_a_directory_is_complete_with_the_rights_that_the_tenant_needs(tmp_path: Path) -> None:
    folder = Directories(tmp_path / "containers")
    folder.prepare()
    made = folder.make(claimed(), "hard")
    assert stat.S_IMODE((tmp_path / "containers").stat().st_mode) == 0o700
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in made.iterdir()}
    assert modes == {"limits": 0o444, "usage": 0o666, "claim.json": 0o600}
    assert (made / "usage").read_bytes() == bytes(USAGE_BYTES)
    assert (made / "limits").read_bytes() == limits_text(claimed(), "hard")
    assert folder.found() == {made.name: claimed()}
    folder.remove(made.name)
    assert not list((tmp_path / "containers").iterdir())


def test_a_directory_with_an_allowance_starts_at_zero_and_is_changed_in_place(tmp_path: Path) -> None:
    folder = Directories(tmp_path / "containers")
    owner = claimed(allowance=True, limit_mib=8192, more={"GPU-b": 1})
    made = folder.make(owner, "hard")
    assert (made / "limits").read_bytes().endswith(b"memory_bytes=1048576\nallowance\n")
    assert stat.S_IMODE((made / "allowance").stat().st_mode) == 0o644
    assert read_allowance(made, 2) == [0, 0]
    inode = (made / "allowance").stat().st_ino
    write_allowance(made, [4096, 1])
    assert read_allowance(made, 2) == [4096, 1]
    assert (made / "allowance").stat().st_ino == inode
    assert folder.is_whole(made.name, owner)
    (made / "allowance").write_bytes(b"")
    with pytest.raises(OSError, match="0 bytes instead of 128"):
        read_allowance(made, 2)
    with pytest.raises(OSError, match="cannot be mapped"):
        write_allowance(made, [1, 1])
    (made / "allowance").unlink()
    assert not folder.is_whole(made.name, owner)


def test_a_directory_removed_during_listing_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Directories(tmp_path / "containers")
    folder.prepare()
    made = {folder.make(claimed(str(number)), "hard").name for number in range(5)}
    read_whole = os.scandir

    @contextmanager
    def first_goes(root: Path) -> Iterator[list[os.DirEntry[str]]]:
        with read_whole(root) as entries:
            found = list(entries)
        gone.append(found[0].name)
        Path(found[0].path).rename(tmp_path / "gone")
        yield found

    gone: list[str] = []
    monkeypatch.setattr(module.os, "scandir", first_goes)
    assert {*folder.names()} == made - {*gone}


@pytest.mark.parametrize("at", ["_write", "sync_folder", "rename"])
def test_a_process_that_dies_while_creating_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """As with ``kill -9``: nothing is cleaned up."""

    class Died(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Died

    folder = Directories(tmp_path)
    monkeypatch.setattr(Path if at == "rename" else module, at, die)
    with pytest.raises(Died):
        folder.make(claimed(), "hard")
    monkeypatch.undo()
    assert folder.found() == {}
    halves = folder.incomplete()
    assert len(halves) == 1
    for half in halves:
        folder.remove_incomplete(half)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Directories(tmp_path).make(claimed(), "hard")
    assert not list(tmp_path.iterdir())


def of_claim(**more: Any) -> Claimed:
    """Of a ResourceClaim, which has no container."""
    return claimed("u1", container="", **more)


def test_limits_of_a_resource_claim_name_the_claim() -> None:
    assert limits_text(of_claim(), "hard").splitlines()[1] == b"container default/p u1"
    assert (of_claim().whose, claimed().whose) == ("ResourceClaim default/p", "pod default/p, container c")


def test_the_directory_of_a_resource_claim_is_made_once_and_goes_on_under_a_new_release(
    tmp_path: Path,
) -> None:
    folder = Directories(tmp_path)
    made = folder.keep(of_claim(library="old"), "hard", "u1")
    usage = (made / "usage").stat().st_ino
    assert folder.keep(of_claim(library="old"), "hard", "u1") == made == tmp_path / "u1"
    assert folder.keep(of_claim(library="new"), "hard", "u1") == made
    assert (made / "usage").stat().st_ino == usage
    assert folder.found() == {"u1": of_claim(library="new")}


def test_the_directory_of_a_resource_claim_without_a_file_or_of_another_share_is_recreated(
    tmp_path: Path,
) -> None:
    folder = Directories(tmp_path)
    made = folder.keep(of_claim(), "hard", "u1")
    (made / "usage").unlink()
    assert folder.keep(of_claim(), "hard", "u1") == made
    assert (made / "usage").stat().st_size == USAGE_BYTES
    folder.keep(of_claim(core_percent=30), "hard", "u1")
    assert b"core_percent=30" in (made / "limits").read_bytes()


def test_half_created_or_half_removed_directories_cause_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Directories(tmp_path)
    for _ in range(2):
        folder.keep(of_claim(), "hard", "u1")
        with monkeypatch.context() as dies:
            dies.setattr(module, "_delete", lambda folder: None)
            folder.remove("u1")
    assert len(folder.incomplete()) == 2
    assert folder.keep(of_claim(), "hard", "u1").is_dir()


def test_an_unreadable_claim_is_found_all_the_same(tmp_path: Path) -> None:
    folder = Directories(tmp_path)
    made = folder.make(claimed(), "hard")
    (made / "claim.json").unlink()
    assert folder.found() == {made.name: None}


def known(*which: tuple[str, str, str, float]) -> dict[str, Kept]:
    return {
        f"{number}": Kept(Path(), claimed(uid, container, ids), since_s)
        for number, (uid, container, ids, since_s) in enumerate(which)
    }


def ids(*which: str) -> dict[tuple[str, str], str]:
    """IDs of containers of some other pods."""
    return {(f"other/{one}", "c"): fingerprint([one]) for one in which}


def test_a_directory_lives_as_long_as_its_pod() -> None:
    there = known(("u1", "c", "1", 0.0))
    assert unused(there, {"u1"}, {}, 1000.0) == []
    assert unused(there, (), {}, 59.0) == []
    assert unused(there, (), {}, 60.0) == ["0"]


def test_one_given_to_a_pod_with_an_identical_request_lives_as_long_as_that() -> None:
    swapped = known(("u1", "c", "1", 0.0), ("u2", "c", "2", 0.0))
    # u1 is gone, u2 has the IDs that were answered for u1.
    assert unused(swapped, {"u2"}, ids("1"), 1000.0) == []
    assert unused(swapped, {"u2"}, ids("2"), 1000.0) == ["0"]


def test_of_several_for_the_same_ids_the_youngest_counts() -> None:
    there = known(("gone", "c", "1", 0.0), ("u2", "c", "1", 500.0))
    assert unused(there, {"u2"}, ids("1"), 1000.0) == ["0"]


def test_the_directory_of_a_living_pod_belongs_to_no_other() -> None:
    # As found after a start: equally old, whatever their order.
    there = known(("u2", "c", "1", 0.0), ("gone", "c", "1", 0.0))
    assert unused(there, {"u2"}, ids("1"), 1000.0) == ["1"]


def test_an_answer_for_a_pod_with_other_ids_belongs_to_no_pod_unless_it_is_listed() -> None:
    # The kubelet's request was for u2, whose identical request was taken for u1's; u2 has ended since.
    there = known(("u1", "c", "1", 0.0), ("u1", "c", "2", 500.0))
    own = {("default/p", "c"): fingerprint(["1"])}
    assert unused(there, {"u1"}, own, 1000.0) == ["1"]
    assert unused(there, {"u1"}, own | ids("2"), 1000.0) == []
    assert unused(there, {"u1"}, {}, 1000.0) == []


def test_an_init_container_has_its_own_for_the_same_ids() -> None:
    there = known(("u1", "init", "1", 0.0), ("u1", "app", "1", 0.0))
    assert unused(there, {"u1"}, ids("1"), 1000.0) == []


def test_a_repeated_answer_replaces_the_one_before() -> None:
    there = known(("u1", "c", "1", 0.0), ("u1", "c", "1", 5.0))
    assert unused(there, {"u1"}, ids("1"), 1000.0) == ["0"]


def test_an_unreadable_directory_stays_while_pods_are_there() -> None:
    there = {"x": Kept(Path(), None, 0.0)}
    assert unused(there, {"u9"}, {}, 1000.0) == []
    assert unused(there, (), {}, 1000.0) == ["x"]
