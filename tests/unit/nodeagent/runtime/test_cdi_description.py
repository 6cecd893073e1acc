"""NVIDIA's CDI descriptions are read, and ours are created from them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api.node.device import Device
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.dra.claim_files import ClaimedShare, ClaimFiles, PreparedClaim
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.runtime.cdi.derive_spec import KIND, derived
from gpushare.nodeagent.runtime.cdi.read_spec import BadDescription, cdi_description
from gpushare.nodeagent.runtime.cdi.spec_dirs import OUR_FILE, CdiFolders

GPUS = tuple(Device(index, f"GPU-{index}aaa", 15360) for index in range(2))
MINORS = {"GPU-0aaa": 0, "GPU-1aaa": 1}


def of_nvidia(*names: str, kind: str = "nvidia.com/gpu") -> dict[str, Any]:
    """As ``nvidia-ctk cdi generate`` writes it; a name's last digit is its device node's."""

    def edits(name: str) -> dict[str, Any]:
        numbers = "01" if name == "all" else name.lower().strip("a")[-1:]
        return {
            "deviceNodes": [{"path": f"/dev/nvidia{number}"} for number in numbers]
            + [{"path": "/dev/dri/card1"}]
        }

    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits(name)} for name in names],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "OTHER=1"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["x", "update-ldcache"],
                }
            ],
            "mounts": [{"hostPath": "/usr/lib64/libcuda.so.1", "containerPath": "/usr/lib64/libcuda.so.1"}],
        },
    }


def nodes(content: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["containerEdits"]["deviceNodes"][0]["path"] for one in content["devices"]}


def made(*contents: dict[str, Any], gpus: tuple[Device, ...] = GPUS, minors: dict[str, int] = MINORS) -> Any:
    found = [cdi_description(f"{number}.yaml", content) for number, content in enumerate(contents)]
    result = derived(found, gpus, minors)
    return None if result is None else (json.loads(result.content), result)


@pytest.mark.parametrize(
    "names", [("0", "1", "all"), ("gpu0", "gpu1"), ("GPU-0aaa", "gpu-1AAA"), ("0", "GPU-0aaa", "1", "all")]
)
def test_every_way_to_name_gpus_leads_to_their_uuids(names: tuple[str, ...]) -> None:
    content, result = made(of_nvidia(*names))
    assert content["kind"] == KIND
    assert content["cdiVersion"] == "0.5.0"
    assert nodes(content) == {"GPU-0aaa": "/dev/nvidia0", "GPU-1aaa": "/dev/nvidia1"}
    assert result.covered == {"GPU-0aaa", "GPU-1aaa"}
    assert result.source == "0.yaml"


def test_all_is_as_in_nvidias_except_the_variable_that_hides_the_uuid() -> None:
    source = of_nvidia("0", "1")
    source["devices"][0]["containerEdits"]["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
    before = copy.deepcopy(source)
    content, _ = made(source)
    assert source == before
    edits = dict(before["containerEdits"], env=["OTHER=1"])
    assert content["containerEdits"] == edits
    assert "env" not in content["devices"][0]["containerEdits"]


def test_an_index_never_leads_to_another_gpus_device_node() -> None:
    # GPU 0 is lost, and the other one has had index 0 in NVML since.
    left = (Device(0, "GPU-1aaa", 15360),)
    content, _ = made(of_nvidia("0", "1", "all"), gpus=left, minors={"GPU-1aaa": 1})
    assert nodes(content) == {"GPU-1aaa": "/dev/nvidia1"}
    assert made(of_nvidia("GPU-1aaa0"), gpus=left, minors={"GPU-1aaa": 1}) is None


def test_a_uuid_with_another_gpus_device_node_is_outdated_and_not_used() -> None:
    stale = of_nvidia("GPU-0aaa", "GPU-1aaa")
    _, result = made(stale, minors={"GPU-0aaa": 0, "GPU-1aaa": 7})
    assert result.covered == {"GPU-0aaa"}


def test_a_driver_without_minor_numbers_is_trusted_by_index() -> None:
    content, _ = made(of_nvidia("0", "1"), minors={})
    assert nodes(content) == {"GPU-0aaa": "/dev/nvidia0", "GPU-1aaa": "/dev/nvidia1"}


def instance(name: str, *capabilities: int) -> dict[str, Any]:
    """A MIG device as ``nvidia-ctk`` writes it: its GPU's device node, and two that give access to the instance."""
    nodes = ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in capabilities)]
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


@pytest.mark.parametrize("names", [("0:0", "0:1"), ("MIG-b", "MIG-a"), ("mig0:0", "mig0:1")])
def test_an_instance_is_found_by_its_uuid_or_the_device_nodes_of_its_access(names: tuple[str, str]) -> None:
    content = of_nvidia("1")
    content["devices"] += [instance(names[0], 21, 22), instance(names[1], 30, 31)]
    gpus = (GPUS[1], Device(20, "MIG-b", 40192), Device(16, "MIG-a", 19968))
    found = [cdi_description("0.yaml", content)]
    minors = {"GPU-1aaa": 1, "MIG-a": 0, "MIG-b": 0}
    result = derived(found, gpus, minors, {"MIG-b": (21, 22), "MIG-a": (30, 31)})
    assert result is not None
    devices = {
        one["name"]: one["containerEdits"]["deviceNodes"] for one in json.loads(result.content)["devices"]
    }
    assert {name: nodes[-1]["path"][-5:] for name, nodes in devices.items() if name.startswith("MIG-")} == {
        "MIG-b": "cap22",
        "MIG-a": "cap31",
    }
    assert result.covered == {"GPU-1aaa", "MIG-a", "MIG-b"}
    unknown = derived(found, gpus, minors, {"MIG-b": (), "MIG-a": ()})
    assert unknown is not None
    assert unknown.covered == ({*minors} if "MIG-a" in names else {"GPU-1aaa"})


@pytest.mark.parametrize("major", [None, 237])
def test_an_instance_that_nvidias_spec_does_not_have_yet_is_added(major: int | None) -> None:
    found = [cdi_description("0.yaml", of_nvidia("1"))]
    gpus = (GPUS[1], Device(20, "MIG-b", 40192))
    result = derived(found, gpus, {"GPU-1aaa": 1, "MIG-b": 0}, {"MIG-b": (21, 22)}, major)
    assert result is not None
    made = {one["name"]: one["containerEdits"] for one in json.loads(result.content)["devices"]}
    own = [{"type": "c", "major": 237, "minor": number} if major else {} for number in (21, 22)]
    assert made["MIG-b"]["deviceNodes"] == [
        {"path": "/dev/nvidia0"},
        {"path": "/dev/nvidia-caps/nvidia-cap21", **own[0]},
        {"path": "/dev/nvidia-caps/nvidia-cap22", **own[1]},
    ]


def test_the_name_all_is_the_gpu_if_there_is_only_one() -> None:
    wsl = of_nvidia("all")
    wsl["devices"][0]["containerEdits"]["deviceNodes"] = [{"path": "/dev/dxg"}]
    content, _ = made(wsl, gpus=GPUS[:1])
    assert nodes(content) == {"GPU-0aaa": "/dev/dxg"}
    assert made(wsl) is None


def test_nvidias_own_kind_takes_precedence_and_foreign_ones_are_skipped() -> None:
    ours, plugins = of_nvidia("0", "1"), of_nvidia("0", "1", kind="k8s.device-plugin.nvidia.com/gpu")
    assert made(plugins, ours)[1].source == "1.yaml"
    assert made(plugins)[1].source == "0.yaml"
    assert made(of_nvidia("0", "1", kind="vendor.example/gpu")) is None
    assert made(of_nvidia("0"), ours)[1].source == "1.yaml"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cdiVersion": "0.2.0"}, "cdiVersion is '0.2.0'"),
        ({"cdiVersion": None}, "cdiVersion is None"),
        ({"kind": "gpu"}, "kind is 'gpu'"),
        ({"devices": []}, "it has no devices"),
        ({"devices": ["0"]}, "a device is not a mapping"),
        ({"devices": [{"name": "a b"}]}, "a device has the name 'a b'"),
        ({"devices": [{"name": "0"}, {"name": "0"}]}, "device '0' is there twice"),
        ({"devices": [{"name": "0", "containerEdits": []}]}, "containerEdits of device '0' is not a mapping"),
        ({"containerEdits": {"env": "A=1"}}, "env in containerEdits is not a list of str"),
        (
            {"containerEdits": {"deviceNodes": ["/dev/nvidia0"]}},
            "deviceNodes in containerEdits is not a list",
        ),
    ],
)
def test_any_error_makes_the_whole_description_unusable(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadDescription, match=r"x\.yaml") as caught:
        cdi_description("x.yaml", of_nvidia("0") | change)
    assert complaint in str(caught.value)


def test_both_formats_are_read_best_folder_first_and_broken_files_are_reported(tmp_path: Path) -> None:
    static, dynamic = tmp_path / "etc", tmp_path / "run"
    static.mkdir()
    dynamic.mkdir()
    (static / "nvidia.yaml").write_text("---\n" + yaml.safe_dump(of_nvidia("0", "1")))
    (dynamic / "nvidia.json").write_text(json.dumps(of_nvidia("0")))
    (dynamic / "half.json").write_text('{"cdiVersion": "0.5.0", ')
    (dynamic / "half.yaml").write_text("kind: [")
    (dynamic / "not-cdi.yaml").write_text("- 1\n")
    (dynamic / "notes.txt").write_text("no description")
    (dynamic / OUR_FILE).write_text("{}")
    share = PreparedClaim(ClaimReference("default", "web", "u-1"), (ClaimedShare("GPU-a", 1024, 0),))
    ClaimFiles(dynamic).write(share, Injection())
    folders = CdiFolders([static, dynamic, tmp_path / "absent"])
    found = folders.read()
    assert [Path(one.path).name for one in found.descriptions] == ["nvidia.json", "nvidia.yaml"]
    assert [fault.partition(": ")[2][:14] for fault in found.faults] == [
        "it is not JSON",
        "it is not YAML",
        "the file is no",
    ]
    assert folders.read() == found
    (dynamic / "half.json").write_text(json.dumps(of_nvidia("1")))
    assert len(folders.read().descriptions) == 3


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(5 << 20)
    assert "more than 4194304" in CdiFolders([tmp_path]).read().faults[0]


def test_ours_is_written_atomically_and_only_if_it_changed(tmp_path: Path) -> None:
    folders = CdiFolders([tmp_path / "etc", tmp_path / "run"])
    assert folders.write(b"one")
    assert folders.ours.read_bytes() == b"one"
    assert folders.ours.stat().st_mode & 0o777 == 0o644
    inode = folders.ours.stat().st_ino
    assert not folders.write(b"one")
    assert folders.ours.stat().st_ino == inode
    assert folders.write(b"two")
    assert [one.name for one in folders.ours.parent.iterdir()] == [OUR_FILE]
    assert folders.remove()
    assert not folders.remove()


def test_an_unwritable_folder_is_reported_and_left_clean(tmp_path: Path) -> None:
    folders = CdiFolders([tmp_path])
    folders.ours.mkdir()
    with pytest.raises(OSError, match="directory"):
        folders.write(b"one")
    assert [one.name for one in tmp_path.iterdir()] == [OUR_FILE]
