"""Build hook: generates the gRPC stubs before a wheel or an editable install is made."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface):
    """Runs ``scripts/generate_stubs.py``; the wheel takes the result in as artifacts."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate what is stale."""
        runpy.run_path(str(Path(self.root) / "scripts" / "generate_stubs.py"))["generate"]()
