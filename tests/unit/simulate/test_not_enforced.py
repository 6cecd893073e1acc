"""What a simulation reports about containers whose limits are not enforced."""

import json
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.simulate.__main__ import main
from gpushare.simulate.snapshot import ClusterState, snapshot_of
from tests.unit.simulate.objects import node, pod
from tests.unit.simulate.test_command import manifests


def test_nodes_without_isolation_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, enforced, off = (
        tmp_path / "c.json",
        node("held", 15360, mode="cgpu"),
        node("off", 15360, mode="cgpu"),
    )
    off["metadata"]["annotations"][names.ANN_ISOLATION] = "none: it is switched off"
    state = ClusterState((node("a", 15360), node("b", 15360), enforced, off))
    saved.write_bytes(snapshot_of(state))
    file = manifests(tmp_path, *(pod(f"p{number}", 14) for number in range(4)))
    assert main(["--snapshot", str(saved), "-f", file]) == 0
    out = capsys.readouterr().out
    trusts = "mode share does not enforce shares"
    assert f"Not enforced: shares of pods on a, b: {trusts}.\n" in out
    assert "Not enforced: shares of pods on off: it is switched off.\n" in out
    assert main(["--snapshot", str(saved), "-f", file, "-o", "json"]) == 0
    reasons = {one["node"]: one["notEnforced"] for one in json.loads(capsys.readouterr().out)["pods"]}
    assert reasons == {"a": trusts, "b": trusts, "held": None, "off": "it is switched off"}


def test_gpus_that_take_less_than_the_table_shows_as_free_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, used, lost = tmp_path / "c.json", node("used", 15360), node("lost", 15360)
    for one, changes in ((used, {"foreign": 9000}), (lost, {"healthy": False})):
        described = json.loads(one["metadata"]["annotations"][names.ANN_DEVICES])
        described["gpus"][0] |= changes
        one["metadata"]["annotations"][names.ANN_DEVICES] = json.dumps(described)
    saved.write_bytes(snapshot_of(ClusterState((used, lost))))
    assert main(["--snapshot", str(saved), "-f", manifests(tmp_path, pod("p", 2))]) == 0
    out = capsys.readouterr().out
    assert "Not available, used without an allocation: 9000 MiB of GPU 0 on used.\n" in out
    assert "Not available, unhealthy: GPU 0 on lost.\n" in out
