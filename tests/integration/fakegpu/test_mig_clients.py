"""NVIDIA's nvidia-smi shows and changes the fake driver's MIG instances. Expected texts are those
of NVIDIA's MIG user guide, and of users' H100.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.fakegpu.test_fakegpu_clients import described, smi
from tests.unit.fakegpu.building import build

H100_PROFILES = """\
|   0  MIG 1g.10gb       19     7/7        9.75       No     16     1     0   |
|                                                             1     1     0   |
|   0  MIG 1g.10gb+me    20     1/1        9.75       No     16     1     0   |
|                                                             1     1     1   |
|   0  MIG 1g.20gb       15     4/4        19.62      No     26     1     0   |
|                                                             1     1     0   |
|   0  MIG 2g.20gb       14     3/3        19.62      No     32     2     0   |
|                                                             2     2     0   |
|   0  MIG 3g.40gb        9     2/2        39.50      No     60     3     0   |
|                                                             3     3     0   |
|   0  MIG 4g.40gb        5     1/1        39.50      No     64     4     0   |
|                                                             4     4     0   |
|   0  MIG 7g.80gb        0     1/1        79.25      No     132    7     0   |
|                                                             8     7     1   |
"""
A100_PROFILES = """\
|   0  MIG 1g.10gb       19     7/7        9.50       No     14     0     0   |
|                                                             1     0     0   |
|   0  MIG 1g.10gb+me    20     1/1        9.50       No     14     1     0   |
|                                                             1     1     1   |
|   0  MIG 1g.20gb       15     4/4        19.50      No     14     1     0   |
|                                                             1     0     0   |
|   0  MIG 2g.20gb       14     3/3        19.50      No     28     1     0   |
|                                                             2     0     0   |
|   0  MIG 3g.40gb        9     2/2        39.25      No     42     2     0   |
|                                                             3     0     0   |
|   0  MIG 4g.40gb        5     1/1        39.25      No     56     2     0   |
|                                                             4     0     0   |
|   0  MIG 7g.80gb        0     1/1        79.00      No     98     5     0   |
|                                                             7     1     1   |
"""
PLACEMENTS = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 15 Placements: {0,2,4,6}:2
GPU  0 Profile ID 14 Placements: {0,2,4}:2
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  5 Placement : {0}:4
GPU  0 Profile ID  0 Placement : {0}:8
"""
MIXED_INSTANCES = """\
|   0  MIG 1g.10gb         19        7          0:1     |
|   0  MIG 1g.10gb         19        8          1:1     |
|   0  MIG 2g.20gb         14        4          2:2     |
|   0  MIG 3g.40gb          9        2          4:4     |
"""


@pytest.fixture(autouse=True)
def _built() -> None:
    build("programs")


@pytest.fixture(params=["a100-80gb", "h100-80gb"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = described(tmp_path, gpus.preset(request.param, "n1"))
    assert "Enabled MIG Mode" in smi(path, "-mig", "1")
    return path


def rows(table: str) -> str:
    """The rows of a table after its head, without rules."""
    body = table.partition("===|\n")[2]
    return "".join(line for line in body.splitlines(keepends=True) if not line.startswith("+"))


def test_profiles_and_placements_are_those_of_the_model(node: Path) -> None:
    expected = A100_PROFILES if "A100" in node.read_text() else H100_PROFILES
    assert rows(smi(node, "mig", "-lgip")) == expected
    assert smi(node, "mig", "-lgipp") == PLACEMENTS


def test_instances_are_created_listed_and_destroyed(node: Path) -> None:
    created = smi(node, "mig", "-cgi", "9,19,2g.20gb,19", "-C")
    assert re.findall(r"created GPU instance ID +(\d+) ", created) == ["2", "7", "4", "8"]
    assert rows(smi(node, "mig", "-lgi")) == MIXED_INSTANCES
    assert smi(node, "mig", "-lci").count("MIG ") == 4
    listed = smi(node, "-L")
    assert re.findall(r"^  MIG (\S+) +Device +(\d): \(UUID: MIG-\S+\)$", listed, re.MULTILINE) == [
        ("3g.40gb", "0"),
        ("2g.20gb", "1"),
        ("1g.10gb", "2"),
        ("1g.10gb", "3"),
    ]
    assert "In use by another client" in smi(node, "mig", "-dgi", code=19)
    assert smi(node, "mig", "-dci").count("Successfully destroyed compute instance ID  0") == 4
    assert smi(node, "mig", "-dgi").count("Successfully destroyed GPU instance") == 4
    assert "Disabled MIG Mode" in smi(node, "-mig", "0")
    assert "MIG" not in smi(node, "-L")


def test_a_half_requested_last_does_not_fit(node: Path) -> None:
    failed = smi(node, "mig", "-cgi", "19,19,14,9", code=23)
    assert re.findall(r"created GPU instance ID +(\d+) ", failed) == ["13", "11", "3"]
    assert "using profile 9: Insufficient Resources" in failed


def test_a_gpu_instance_is_divided_into_compute_instances(node: Path) -> None:
    smi(node, "mig", "-cgi", "9")
    assert "No MIG devices found" in smi(node)
    assert re.findall(r"MIG (\S+) +(\d\*?) +(\d/\d)", smi(node, "mig", "-lcip")) == [
        ("1c.3g.40gb", "0", "3/3"),
        ("2c.3g.40gb", "1", "1/1"),
        ("3g.40gb", "2*", "1/1"),
    ]
    smi(node, "mig", "-cci", "0,0,0", "-gi", "2")
    smi(node, "mig", "-dci", "-ci", "0", "-gi", "2")
    assert re.findall(r"MIG (1c\S+) +0 +(\d) +(\d:1)", smi(node, "mig", "-lci")) == [
        ("1c.3g.40gb", "1", "1:1"),
        ("1c.3g.40gb", "2", "2:1"),
    ]


def test_the_table_shows_mig_devices_under_their_gpu(tmp_path: Path) -> None:
    preset = gpus.preset("mig", "n1")
    path = described(tmp_path, preset)
    table = smi(path)
    assert re.findall(r"\|  0 +(\d) +0 +(\d)  \| +(\d+)MiB / +(\d+)MiB  \| (\d\d)", table) == [
        ("2", "0", "0", "40192", "42"),
        ("3", "1", "0", "19968", "28"),
        ("9", "2", "0", "9728", "14"),
    ]
    uuid = re.findall(r"MIG-[0-9a-f-]+", smi(path, "-L"))[1]
    contained = smi(path, "-L", FAKEGPU_VISIBLE_DEVICES=uuid)
    assert contained.splitlines() == [
        f"GPU 0: {preset.gpus[0].model} (UUID: {preset.gpus[0].uuid})",
        f"  MIG 2g.20gb     Device  0: (UUID: {uuid})",
    ]


def test_other_models_have_no_mig(tmp_path: Path) -> None:
    path = described(tmp_path, gpus.preset("t4", "n1"))
    assert "No MIG-enabled devices found" in smi(path, "mig", "-lgip", code=6)
    path = described(tmp_path, replace(gpus.preset("mig", "n1"), gpus=gpus.preset("a100-80gb", "n1").gpus))
    assert "No MIG-enabled devices found" in smi(path, "mig", "-lgi", code=6)
