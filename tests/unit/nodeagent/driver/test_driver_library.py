"""Where the driver's library is searched, and how it is replaced under a running process."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.nodeagent.driver import driver_loading
from gpushare.nodeagent.driver.driver_library import FOLDERS, LIBRARY, libraries
from gpushare.nodeagent.driver.driver_loading import Driver
from gpushare.nodeagent.driver.nvml import DriverNvml
from gpushare.nodeagent.errors import DriverMissing


def put(root: Path, folder: str, content: str = "library") -> Path:
    path = root / folder / LIBRARY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_found_in_every_usual_place_under_the_nodes_root(folder: str, tmp_path: Path) -> None:
    put(tmp_path, folder)
    assert [one.path for one in libraries(tmp_path)] == [tmp_path / folder / LIBRARY]


def test_absolute_links_are_followed_inside_the_nodes_root(tmp_path: Path) -> None:
    real = put(tmp_path, "usr/lib/nvidia-550")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/nvml").symlink_to(f"/usr/lib/nvidia-550/{LIBRARY}")
    (tmp_path / "usr/lib64").mkdir()
    (tmp_path / "usr/lib64" / LIBRARY).symlink_to("../../etc/alternatives/nvml")
    assert [one.path for one in libraries(tmp_path)] == [real]


def test_a_folder_that_is_a_link_shows_the_same_file_once(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib64")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    assert len(libraries(tmp_path)) == 1


@pytest.mark.parametrize("target", ["nowhere", LIBRARY, "../../../../../../../etc/hostname"])
def test_links_that_lead_nowhere_or_in_circles_are_no_library(target: str, tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64" / LIBRARY).symlink_to(target)
    (tmp_path / "usr/lib" / LIBRARY).mkdir(parents=True)
    assert libraries(tmp_path) == []


def test_folders_of_the_environment_go_first(tmp_path: Path) -> None:
    listed = put(tmp_path, "mine")
    usual = put(tmp_path, "usr/lib64")
    assert [one.path for one in libraries(tmp_path, ["", str(listed.parent)])] == [listed, usual]


class Linker:
    """The dynamic linker: loads texts, and refuses those that contain ``broken``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[Any] = []
        self.closed: list[int] = []
        monkeypatch.setattr(driver_loading.ctypes, "CDLL", self._load)
        monkeypatch.setattr(driver_loading._ctypes, "dlclose", self.closed.append)
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        monkeypatch.setattr(pynvml, "nvmlInit", self._init)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
        # Not the developer's own driver.
        monkeypatch.setattr(
            driver_loading,
            "libraries",
            lambda root, listed=(): [] if root == Path("/") else libraries(root, listed),
        )

    def _load(self, path: str, mode: int = 0) -> Any:
        if Path(path).read_text() == "broken":
            raise OSError("file too short")
        library = SimpleNamespace(path=path, _handle=len(self.loaded))
        self.loaded.append(library)
        return library

    def _init(self) -> None:
        if pynvml.nvmlLib is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.fixture
def linker(monkeypatch: pytest.MonkeyPatch) -> Linker:
    return Linker(monkeypatch)


def test_a_driver_installed_later_is_loaded_by_its_path(linker: Linker, tmp_path: Path) -> None:
    nvml = DriverNvml(tmp_path)
    with pytest.raises(DriverMissing):
        nvml.open()
    put(tmp_path, "usr/lib64", "broken")
    with pytest.raises(DriverMissing):
        nvml.open()
    there = put(tmp_path, "usr/lib/x86_64-linux-gnu")
    nvml.open()
    assert [one.path for one in linker.loaded] == [str(there)]
    nvml.close()
    nvml.open()
    assert len(linker.loaded) == 1


def test_a_removed_or_replaced_library_is_noticed_and_closed(linker: Linker, tmp_path: Path) -> None:
    nvml = DriverNvml(tmp_path)
    path = put(tmp_path, "usr/lib64")
    nvml.open()
    pynvml._nvmlGetFunctionPointer_cache["nvmlInit_v2"] = "of the old one"
    assert not nvml.replaced()
    newer = path.with_name("newer")
    newer.write_text("another")
    newer.replace(path)
    assert nvml.replaced()
    nvml.close()
    nvml.open()
    assert len(linker.loaded) == 2
    assert linker.closed == [0]
    assert pynvml.nvmlLib is linker.loaded[1]
    assert "nvmlInit_v2" not in pynvml._nvmlGetFunctionPointer_cache
    path.unlink()
    assert nvml.replaced()
    nvml.close()
    with pytest.raises(DriverMissing):
        nvml.open()
    assert linker.closed == [0, 1]


def test_on_wsl_the_library_next_to_it_is_loaded_first(linker: Linker, tmp_path: Path) -> None:
    path = put(tmp_path, "usr/lib/wsl/lib")
    path.with_name("libdxcore.so").touch()
    Driver(tmp_path).load()
    assert [Path(one.path).name for one in linker.loaded] == ["libdxcore.so", LIBRARY]


def test_the_libraries_of_this_machine_are_searched_if_no_root_is_named() -> None:
    found = libraries(Path("/"), os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    assert all(one.path.is_file() for one in found)
