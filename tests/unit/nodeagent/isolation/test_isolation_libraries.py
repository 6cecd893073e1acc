"""Our libraries are copied to the host completely, and removed when no container uses them."""

import os
from pathlib import Path
from typing import Any

import pytest

from gpushare.nodeagent.isolation.storage import libraries
from gpushare.nodeagent.isolation.storage.files import DELIVERED
from gpushare.nodeagent.isolation.storage.libraries import NoLibrary, deliver, hold, remove_others


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    folder.mkdir()
    for name in DELIVERED:
        (folder / name).write_bytes(f"the shim of {name}".encode())
    return folder


def test_a_release_is_named_by_its_contents_and_copied_once(source: Path, tmp_path: Path) -> None:
    first = deliver(source, tmp_path / "lib")
    assert {one.name for one in first.folder.iterdir()} == {*DELIVERED, "ld.so.preload"}
    assert (first.folder / "ld.so.preload").read_text() == (
        "/run/gpushare/lib/libcuda.so.1\n/run/gpushare/lib/libnvidia-ml.so.1\n"
        "/run/gpushare/lib/libcuda.so\n/run/gpushare/lib/libnvidia-ml.so\n"
    )
    inode = (first.folder / "libcuda.so.1").stat().st_ino
    assert deliver(source, tmp_path / "lib") == first
    assert (first.folder / "libcuda.so.1").stat().st_ino == inode
    (source / "libcuda.so.1").write_bytes(b"another")
    second = deliver(source, tmp_path / "lib")
    assert second.name != first.name
    assert first.folder.is_dir()


def test_a_process_that_dies_while_copying_leaves_no_half_release(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(libraries, "sync_folder", die)
    monkeypatch.setattr(libraries.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        deliver(source, tmp_path / "lib")
    assert all(one.name.startswith(".new-") for one in (tmp_path / "lib").iterdir())
    monkeypatch.undo()
    assert deliver(source, tmp_path / "lib").folder.is_dir()


def test_another_agent_may_copy_the_same_release(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, seen = libraries.sync_folder, []

    def first_the_other(folder: Path) -> None:
        if not seen:
            seen.append(folder)
            deliver(source, tmp_path / "lib")
        sync(folder)

    monkeypatch.setattr(libraries, "sync_folder", first_the_other)
    release = deliver(source, tmp_path / "lib")
    assert [one.name for one in (tmp_path / "lib").iterdir()] == [release.name]


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        NoLibrary, match=r"image/libcuda.so.1: No such file or directory; it is part of the image"
    ):
        deliver(tmp_path / "image", tmp_path / "lib")


def test_an_unwritable_folder_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("a file where the folder should be")
    with pytest.raises(NoLibrary, match=r"lib: it cannot be written: .*; mount it into the node agent"):
        deliver(source, tmp_path / "lib")


def test_a_folder_from_which_no_program_may_load_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoExec:
        f_flag = libraries.os.ST_NOEXEC

    monkeypatch.setattr(libraries.os, "statvfs", lambda _: NoExec)
    with pytest.raises(NoLibrary, match="mounted noexec"):
        deliver(source, tmp_path / "lib")


def test_releases_without_containers_are_removed(source: Path, tmp_path: Path) -> None:
    old = deliver(source, tmp_path / "lib")
    (source / "libcuda.so.1").write_bytes(b"another")
    new = deliver(source, tmp_path / "lib")
    (tmp_path / "lib" / ".gone-x").mkdir()
    (tmp_path / "lib" / ".new-x").mkdir()
    assert remove_others(tmp_path / "lib", {old.name, new.name}) == []
    assert {one.name for one in (tmp_path / "lib").iterdir()} == {old.name, new.name, ".new-x"}
    os.utime(old.folder, (0, 0))
    assert remove_others(tmp_path / "lib", {new.name}) == [old.name]
    assert remove_others(tmp_path / "nowhere", set()) == []


def test_a_release_in_use_by_another_agent_stays(source: Path, tmp_path: Path) -> None:
    """Otherwise the previous agent would remove it while the next one tests it on the driver, and it would seem broken."""
    its = deliver(source, tmp_path / "lib")
    assert remove_others(tmp_path / "lib", {"0123456789abcdef"}) == []
    os.utime(its.folder, (0, 0))
    hold(its)
    assert remove_others(tmp_path / "lib", {"0123456789abcdef"}) == []
    # A release from long ago is in use again.
    os.utime(its.folder, (0, 0))
    assert deliver(source, tmp_path / "lib") == its
    assert remove_others(tmp_path / "lib", {"0123456789abcdef"}) == []
    assert its.folder.is_dir()
