"""A command runs in a virtual machine over this machine's files, with cgroup version 2 and AppArmor."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.assigned import commands_typed_by
from tests.e2e.virtual.machine import kernel_folder
from tests.patience import SLOWNESS

CHECKOUT = Path(__file__).parents[2]

# Nothing of the product: it guards what make e2e-virtual runs on.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def typed(command: str) -> str:
    ran = subprocess.run(
        command,
        shell=True,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300 * SLOWNESS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_page_s_commands_show_the_other_kernel() -> None:
    install, shows = commands_typed_by(__file__, "docs/developer/test-cluster.md")
    typed(install.text)
    (image,) = kernel_folder().glob("boot/vmlinuz-*")
    assert image.name.removeprefix("vmlinuz-") in typed(shows.text).split()


def test_it_has_cgroup_version_2_and_apparmor_and_the_command_s_exit_status(tmp_path: Path) -> None:
    script = (
        "stat -f -c %T /sys/fs/cgroup; cat /sys/kernel/security/lsm; echo kept >/run/virtual/kept; "
        "touch written; exit 3"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tests.e2e.virtual", "--shared", str(tmp_path), "--", "sh", "-c", script],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300 * SLOWNESS,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    assert "cgroup2fs" in ran.stdout
    assert "apparmor" in ran.stdout
    assert (tmp_path / "kept").read_text() == "kept\n"
    assert not (CHECKOUT / "written").exists(), "nothing else stays"
