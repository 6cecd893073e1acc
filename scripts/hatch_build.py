"""Build hook: generates the gRPC stubs, and compiles the library of placement, before a wheel or an editable install is made."""

import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratedFilesHook(BuildHookInterface):
    """Runs ``scripts/generate_stubs.py`` and ``make -C lookahead``; the wheel takes the results in as artifacts."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate what is stale. Without a compiler the wheel has no library, and placement by fragmentation is slower."""
        root = Path(self.root)
        runpy.run_path(str(root / "scripts" / "generate_stubs.py"))["generate"]()
        if self.target_name != "wheel":
            return
        if shutil.which("make") and shutil.which("gcc"):
            subprocess.run(["make", "--silent", "-C", root / "lookahead"], check=True)
        if (root / "src/gpushare/ledger/placement/fragmentation/liblookahead.so").exists():
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
