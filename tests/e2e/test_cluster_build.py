"""How the cluster's programs are found, built and cached; with stand-ins for Go and its results."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.cluster.binaries import INIT, CannotBuild, build
from tests.e2e.cluster.programs import KUBERNETES, kubernetes_version, programs

GO = """#!/bin/sh
case $1 in
env) echo go1.0-of-a-test; exit 0 ;;
esac
echo "$PWD $*" >>"$GO_LOG"
[ -z "$GO_FAILS" ] || { echo "cannot compile this" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
out=$2
shift 2
for package; do
    case $package in
    */v[0-9]*) package=${package%/v[0-9]*} ;;
    esac
    echo "made ${package##*/}" >"$out/${package##*/}"
done
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go that logs its arguments and creates a file; the cache is a folder of the test's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(GO)
    (tools / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("GO_LOG", str(tmp_path / "go.log"))
    monkeypatch.setenv("GPUSHARE_E2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "go.log"


@pytest.mark.parametrize("k8s", KUBERNETES)
def test_every_program_is_pinned(k8s: str) -> None:
    for program in programs(k8s).values():
        assert (program.folder / "go.sum").is_file(), program
        assert f"\t{program.package}\n" in (program.folder / "go.mod").read_text().replace("tool ", "\t"), (
            program
        )
    assert kubernetes_version(k8s).startswith(f"v{k8s}.")


def test_a_program_is_built_once(go: Path) -> None:
    first = build(names=["helm", "etcd"], report=lambda _: None)
    second = build(names=["etcd", "helm"], report=lambda _: None)
    assert {path.name for path in first.iterdir()} == {"helm", "etcd", INIT}
    assert {path.name: path.read_bytes() for path in second.iterdir()} == {
        path.name: path.read_bytes() for path in first.iterdir()
    }
    assert len(go.read_text().splitlines()) == 2


def test_programs_with_the_same_module_and_flags_are_built_by_one_command(go: Path) -> None:
    folder = build(names=["cni", "kubectl", "kubelet", "etcd"], report=lambda _: None)
    made = {path.name: path.read_text() for path in folder.iterdir() if path.name != INIT}
    assert made.pop("etcd") == "made server\n"
    assert made == {name: f"made {name}\n" for name in made}
    assert len(made) == 6
    built = [line.rpartition(" -o ")[2].split()[1:] for line in go.read_text().splitlines()]
    assert sorted(len(packages) for packages in built) == [1, 2, 4]


def test_programs_that_exist_are_used_and_the_rest_is_built(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = tmp_path / "existing"
    existing.mkdir()
    (existing / "etcd").write_text("existing")
    for way in ("argument", "environment"):
        if way == "environment":
            monkeypatch.setenv("KUBEBUILDER_ASSETS", str(existing))
        folder = build(
            names=["etcd", "helm"], ready=existing if way == "argument" else None, report=lambda _: None
        )
        assert (folder / "etcd").read_text() == "existing"
        assert (folder / "helm").read_text() == "made helm\n"
    with pytest.raises(CannotBuild, match="no such folder"):
        build(ready=tmp_path / "nowhere")


def test_a_failing_build_reports_why_and_leaves_nothing(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_FAILS", "1")
    with pytest.raises(CannotBuild, match="cannot compile this"):
        build(names=["helm"], report=lambda _: None)
    left = [path.name for path in (tmp_path / "cache" / "programs").iterdir()]
    assert not [name for name in left if name.startswith(("helm", ".making"))]


def test_missing_tools_are_reported(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(names=["helm"], report=lambda _: None)
    few = tmp_path / "few"
    few.mkdir()
    for name in ("sh", "gcc"):
        (few / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(few))
    with pytest.raises(CannotBuild, match="needs Go"):
        build(names=["etcd"], report=lambda _: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{few}")
    with pytest.raises(CannotBuild, match=r"libseccomp-dev.*scripts/install-e2e-packages"):
        build(names=["runc"], report=lambda _: None)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kubelt: no such program; known are .*kubelet"):
        build(names=["kubelt"])
    with pytest.raises(ValueError, match=r"Kubernetes 1\.2: choose one of"):
        kubernetes_version("1.2")
