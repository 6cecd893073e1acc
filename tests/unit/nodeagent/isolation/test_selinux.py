"""Nodes that enforce SELinux: an imitated sysfs and real extended attributes; no kernel here enforces them."""

import os
from pathlib import Path
from typing import Any

import pytest

from gpushare.nodeagent.errors import NodeAgentError
from gpushare.nodeagent.isolation.storage.selinux import is_enforced, let_containers_use, type_of

LABEL = "security.selinux"
VAR_LIB = b"system_u:object_r:var_lib_t:s0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The agent's folder as the kubelet creates it."""
    root = tmp_path / "gpushare"
    (root / "lib" / "release").mkdir(parents=True)
    (root / "containers").mkdir()
    (root / "lib" / "release" / "libcuda.so.1").touch()
    (root / "lib" / "current").symlink_to("/nowhere")
    try:
        for path in (root, *root.rglob("*")):
            os.setxattr(path, LABEL, VAR_LIB, follow_symlinks=False)
    except OSError as error:
        pytest.skip(f"labels cannot be written here: {error}")
    return root


@pytest.mark.parametrize(("content", "enforced"), [("1", True), ("0", False), (None, False)])
def test_enforcement_is_read_from_the_host(tmp_path: Path, content: str | None, enforced: bool) -> None:
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    if content is not None:
        (tmp_path / "sys/fs/selinux/enforce").write_text(content)
    assert is_enforced(tmp_path) is enforced


def test_everything_that_containers_get_is_labelled_for_them(folder: Path) -> None:
    let_containers_use(folder)
    everything = [folder, *folder.rglob("*")]
    assert len(everything) == 6
    assert {os.getxattr(path, LABEL, follow_symlinks=False) for path in everything} == {
        b"system_u:object_r:container_file_t:s0\0"
    }


def test_a_folder_that_an_administrator_labelled_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_containers_use(folder)
    monkeypatch.setattr(os, "setxattr", refused)
    let_containers_use(folder)
    os.removexattr(folder / "lib", LABEL)
    assert type_of(folder / "lib") == ""
    with pytest.raises(
        NodeAgentError, match="lib: SELinux is enforced, containers may not use files of type unknown"
    ):
        let_containers_use(folder)


def test_a_label_that_cannot_be_changed_is_reported_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(
        NodeAgentError,
        match=r"type var_lib_t, .* \(Permission denied\): run `chcon -R -t container_file_t FOLDER`",
    ):
        let_containers_use(folder)


def refused(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")
