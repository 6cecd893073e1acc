"""Loads the driver's NVML library into this process, and another one when the driver was replaced.

nvidia-ml-py loads ``libnvidia-ml.so.1`` once, by the dynamic linker's search. A driver that is installed later, is under another
root, or is upgraded under a running process needs more: the file is loaded by path, and unloaded before another is loaded, as
libraries of two drivers cannot use one kernel module.
"""

import _ctypes
import ctypes
import logging
import os
from pathlib import Path
from typing import Final

import pynvml

from gpushare.nodeagent.driver.device_nodes import link_device_nodes
from gpushare.nodeagent.driver.driver_library import LIBRARY, LibraryFile, libraries

logger = logging.getLogger(__name__)

#: On WSL the library needs this one next to it, which no search finds.
_WSL_NEIGHBOUR: Final = "libdxcore.so"


class Driver:
    """The library that nvidia-ml-py calls, which is one for the process. ``root``: where the node's files are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._loaded: LibraryFile | None = None

    def load(self) -> None:
        """Let nvidia-ml-py use the best library; NVML must be closed.

        If no file is found nvidia-ml-py searches itself, and fails if it finds nothing.
        """
        link_device_nodes(self._root)
        found = self._found()
        if self._loaded is not None and self._loaded in found:
            return
        self._unload()
        for file in found:
            library = _loaded(file)
            if library is not None:
                logger.info("NVML is %s", file.path)
                self._loaded = file
                _call(library)
                return

    def replaced(self) -> bool:
        """Whether the loaded file is gone, or another one."""
        return self._loaded is not None and self._loaded not in self._found()

    def _found(self) -> list[LibraryFile]:
        # The environment first: it was set on purpose.
        listed = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        found = libraries(self._root, listed)
        # The container's own folders last: NVIDIA's runtime may have put the driver there.
        return found if self._root == Path("/") else [*found, *libraries(Path("/"))]

    def _unload(self) -> None:
        if self._loaded is None:
            return
        logger.info("%s is no longer the driver's library", self._loaded.path)
        self._loaded = None
        library = pynvml.nvmlLib
        _call(None)
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001 - ctypes has no other way to unload


def _loaded(file: LibraryFile) -> ctypes.CDLL | None:
    try:
        neighbour = file.path.with_name(_WSL_NEIGHBOUR)
        if neighbour.exists():
            ctypes.CDLL(str(neighbour), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(file.path))
    except OSError as error:
        logger.warning("%s cannot be loaded as %s: %s", file.path, LIBRARY, error)
        return None


def _call(library: ctypes.CDLL | None) -> None:
    """Let nvidia-ml-py use ``library``; ``None``: what it finds itself."""
    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        # The previous library's functions would still be called.
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
