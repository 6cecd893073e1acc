"""Device nodes of a driver that was installed after the agent's container started."""

from pathlib import Path

import pytest

from gpushare.nodeagent.driver.device_nodes import link_device_nodes


@pytest.fixture
def own(tmp_path: Path) -> Path:
    made = tmp_path / "own"
    made.mkdir()
    return made


def on_the_node(root: Path, *names: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    for name in names:
        (root / "dev" / name).touch()


def test_missing_nodes_are_linked_and_no_others(tmp_path: Path, own: Path) -> None:
    on_the_node(
        tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps", "sda", "nvidia0.old"
    )
    (own / "nvidia0").touch()
    link_device_nodes(tmp_path, own)
    link_device_nodes(tmp_path, own)
    assert {path.name: path.is_symlink() for path in own.iterdir()} == {
        "nvidia0": False,
        "nvidia1": True,
        "nvidiactl": True,
        "nvidia-uvm": True,
        "nvidia-caps": True,
    }
    assert (own / "nvidia1").resolve() == tmp_path / "dev" / "nvidia1"


def test_a_link_to_a_node_that_came_back_elsewhere_is_recreated(tmp_path: Path, own: Path) -> None:
    (own / "nvidia0").symlink_to(tmp_path / "gone")
    on_the_node(tmp_path, "nvidia0")
    link_device_nodes(tmp_path, own)
    assert (own / "nvidia0").exists()


def test_a_node_without_devices_and_an_unwritable_folder_are_no_failure(
    tmp_path: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link_device_nodes(tmp_path / "absent", own)
    on_the_node(tmp_path, "nvidia0")
    link_device_nodes(tmp_path, tmp_path / "absent")
    assert "cannot link" in caplog.text


def test_an_agent_with_the_nodes_own_root_has_its_device_nodes(own: Path) -> None:
    link_device_nodes(Path("/"), own)
    assert list(own.iterdir()) == []
