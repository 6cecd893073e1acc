"""A playground on the real control plane: missing parts, and the rendering of its rules."""

from pathlib import Path

import pytest

from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare_playground.__main__ import main
from gpushare_playground.cluster import Cluster, ClusterError
from gpushare_playground.cluster.real import RIGHTS, TWO_RULES, RealControl
from gpushare_playground.cluster.rules import helm_command, rendered


async def test_a_folder_without_binaries_is_reported_and_leaves_no_state(tmp_path: Path):
    cluster = Cluster(driver=tmp_path, control=RealControl(tmp_path / "none"))
    with pytest.raises(ClusterError, match="no folder of binaries; build the components with"):
        await cluster.__aenter__()
    assert not cluster.state.exists()


def test_helm_renders_only_the_policies():
    command = helm_command(
        Path("/bin/helm"), Path("/charts/one"), (1, 36), ["a", "b"], Counting(MemoryUnit.MIB_128, 16160)
    )
    assert command[:4] == ["/bin/helm", "template", "gpushare", "/charts/one"]
    assert {"--kube-version=1.36", "--set=admission.trustedServiceAccounts={a,b}"} <= set(command)
    assert {"--set=gpuMemoryUnit=128MiB", "--set=admission.referenceGpuMemoryMiB=16160"} <= set(command)
    shown = [one for one in command if one.startswith("--show-only=")]
    assert shown
    assert all(one.startswith("--show-only=templates/admission/") for one in shown)


async def test_the_output_of_helm_is_written_to_the_file(tmp_path: Path):
    written = await rendered(["sh", "-c", "echo kind: Policy; echo noise >&2"], tmp_path / "rules.yaml")
    assert written.read_text() == "kind: Policy\n"


async def test_helms_own_error_is_reported(tmp_path: Path):
    with pytest.raises(ClusterError, match="cannot be rendered: no such chart"):
        await rendered(["sh", "-c", "echo no such chart >&2; exit 1"], tmp_path / "rules.yaml")


def test_the_playgrounds_own_manifests_are_packed_with_it():
    assert RIGHTS.is_file()
    assert TWO_RULES.is_file()


def test_rules_without_a_real_control_plane_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["--apply", "rules.yaml"]) == 2
    assert "--apply goes with --control-plane" in capsys.readouterr().err
