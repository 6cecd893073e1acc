"""Unpacking Debian packages: merged /usr, no documentation, records for scanners."""

import shutil
import subprocess
from pathlib import Path

import pytest

from images import debian
from images.errors import CannotBuild

CONTROL = """Package: probe
Version: 1:2.0-1
Architecture: all
Source: probe-source (2.0)
Maintainer: Nobody <nobody@example.com>
Description: a package for a test
"""


@pytest.fixture
def package(tmp_path: Path) -> debian.Package:
    if not shutil.which("dpkg-deb"):
        pytest.skip("no dpkg-deb: packages can only be built on Debian and its derivatives")
    tree = tmp_path / "probe"
    for name, content in {
        "DEBIAN/control": CONTROL,
        "lib/libprobe.so.1": "library",
        "bin/probe": "#!/bin/sh\n",
        "usr/share/doc/probe/copyright": "free",
        "usr/share/doc/probe/changelog": "long",
        "usr/share/man/man1/probe.1": "manual",
        "usr/share/locale/de/probe.mo": "text",
        "etc/probe.conf": "setting",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    (tree / "bin/probe").chmod(0o755)
    (tree / "usr/share/doc/probe-data").symlink_to("probe")
    deb = tmp_path / "probe.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, deb], check=True, capture_output=True)
    return debian.read(deb)


def test_files_needed_at_run_time_are_unpacked_into_the_merged_usr(
    package: debian.Package, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    debian.unpack([package], root)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}
    assert found == {
        "bin",
        "lib",
        "usr/bin/probe",
        "usr/lib/libprobe.so.1",
        "usr/share/doc/probe/copyright",
        "usr/share/doc/probe-data",
        "etc/probe.conf",
        "var/lib/dpkg/status.d/probe",
        "var/lib/dpkg/status.d/probe.md5sums",
    }
    assert (root / "usr/bin/probe").stat().st_mode & 0o777 == 0o755
    assert (root / "bin").readlink() == Path("usr/bin")
    record = (root / "var/lib/dpkg/status.d/probe").read_text()
    assert record.startswith("Package: probe\nVersion: 1:2.0-1\n")
    assert record.endswith("\nStatus: install ok installed\n")
    sums = (root / "var/lib/dpkg/status.d/probe.md5sums").read_text().splitlines()
    checked = subprocess.run(
        ["md5sum", "--check"], cwd=root, input="\n".join(sums) + "\n", text=True, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout


def test_the_fields_of_a_package_are_read(package: debian.Package) -> None:
    assert (package.name, package.version, package.architecture) == ("probe", "1:2.0-1", "all")
    assert package.source == "probe-source"


def test_a_machine_with_another_release_is_rejected_with_advice(tmp_path: Path) -> None:
    os_release = tmp_path / "os-release"
    os_release.write_text('ID=fedora\nPRETTY_NAME="Fedora 43"\n')
    with pytest.raises(CannotBuild, match=r"Fedora 43; build images/Containerfile"):
        debian.release(os_release)
    os_release.write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    assert debian.release(os_release) == "bookworm"
