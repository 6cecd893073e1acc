"""Node templates for autoscalers match what the new nodes will advertise."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.node.node_template import FORMS, InvalidTemplate, NodeTemplate, template_of, written
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.nodetemplate.__main__ import main

MODES = st.sampled_from([mode for mode in MODES.values() if mode.resources])
GPUS = st.lists(st.integers(1, 200_000), min_size=1, max_size=16).map(tuple)
V100 = 16160


def described(mode: NodeMode = NodeMode.CORE_MEM, unit: MemoryUnit = MemoryUnit.GIB, *gpus_mib: int):
    devices = tuple(Device(index, f"GPU-{index}", mib) for index, mib in enumerate(gpus_mib))
    return {
        "metadata": {
            "name": "n1",
            "annotations": {names.ANN_DEVICES: devices_annotation(mode, unit, devices)},
        }
    }


@pytest.mark.parametrize(
    ("mode", "unit", "capacity"),
    [
        (NodeMode.SHARE, MemoryUnit.GIB, {names.GPU_MEM: 60, names.GPU_COUNT: 4}),
        (NodeMode.CGPU, MemoryUnit.MIB_128, {names.GPU_MEM: 504, names.GPU_COUNT: 4}),
        (NodeMode.MPS, MemoryUnit.GIB, {names.GPU_MEM: 60, names.GPU_COUNT: 4}),
        (NodeMode.CORE_MEM, MemoryUnit.GIB, {names.GPU_MEM: 60, names.GPU_COUNT: 4, names.GPU_CORE: 400}),
        (NodeMode.TOPOLOGY, MemoryUnit.GIB, {names.GPU_WHOLE: 4}),
    ],
)
def test_each_mode_has_its_resources(mode, unit, capacity):
    assert NodeTemplate((V100,) * 4, mode, unit).capacity == capacity


@given(GPUS, MODES, st.sampled_from(list(MemoryUnit)))
def test_an_existing_node_is_described_like_a_future_one(gpus_mib, mode, unit):
    assert template_of(decode_node(described(mode, unit, *gpus_mib))) == NodeTemplate(gpus_mib, mode, unit)


def test_aws_and_azure_take_tags():
    template = NodeTemplate((V100,), NodeMode.SHARE, MemoryUnit.MIB_128)
    assert written(template, "aws", "g") == {
        "k8s.io/cluster-autoscaler/node-template/label/ack.node.gpu.schedule": "share",
        "k8s.io/cluster-autoscaler/node-template/resources/aliyun.com/gpu-mem": "126",
        "k8s.io/cluster-autoscaler/node-template/resources/aliyun.com/gpu-count": "1",
    }
    assert written(template, "azure", "g") == {
        "k8s.io_cluster-autoscaler_node-template_label_ack.node.gpu.schedule": "share",
        "k8s.io_cluster-autoscaler_node-template_resources_aliyun.com_gpu-mem": "126",
        "k8s.io_cluster-autoscaler_node-template_resources_aliyun.com_gpu-count": "1",
    }


def test_gce_takes_a_list_in_the_kube_env():
    assert written(NodeTemplate((V100,) * 2, NodeMode.CORE_MEM), "gce", "g") == {
        "AUTOSCALER_ENV_VARS": "node_labels=ack.node.gpu.schedule=core_mem;"
        "extended_resources=aliyun.com/gpu-mem=30,aliyun.com/gpu-count=2,aliyun.com/gpu-core.percentage=200"
    }


def test_the_cluster_api_takes_one_resource():
    prefix = "capacity.cluster-autoscaler.kubernetes.io"
    assert written(NodeTemplate((V100,)), "cluster-api", "g") == {
        f"{prefix}/gpu-type": names.GPU_MEM,
        f"{prefix}/gpu-count": "15",
        f"{prefix}/labels": "ack.node.gpu.schedule=share",
    }
    with pytest.raises(InvalidTemplate, match="hold one resource, nodes in mode core_mem have"):
        written(NodeTemplate((V100,), NodeMode.CORE_MEM), "cluster-api", "g")


def test_karpenter_takes_an_object():
    overlay = written(NodeTemplate((V100,)), "karpenter", "pool")
    assert overlay["kind"] == "NodeOverlay"
    assert overlay["spec"] == {
        "requirements": [{"key": "karpenter.sh/nodepool", "operator": "In", "values": ["pool"]}],
        "capacity": {names.GPU_MEM: "15", names.GPU_COUNT: "1"},
    }


@pytest.mark.parametrize("template", [NodeTemplate(()), NodeTemplate((V100,), NodeMode.DEFAULT)])
@pytest.mark.parametrize("form", FORMS)
def test_nodes_that_advertise_nothing_are_refused(template, form):
    with pytest.raises(InvalidTemplate, match="advertise nothing of ours"):
        written(template, form, "g")


def test_the_command_reads_a_node(tmp_path, capsys):
    file = tmp_path / "node.json"
    file.write_text(json.dumps(described(NodeMode.CORE_MEM, MemoryUnit.GIB, V100, V100)))
    assert main(["--node", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "labels": {names.LABEL_MODE: "core_mem"},
        "capacity": {names.GPU_MEM: "30", names.GPU_COUNT: "2", names.GPU_CORE: "200"},
    }
    assert main(["--node", str(file), "--unit", "128MiB", "-o", "aws"]) == 0
    assert '/aliyun.com/gpu-mem": "252"' in capsys.readouterr().out


def test_the_command_takes_the_number_and_size_of_gpus(monkeypatch, capsys):
    assert main(["--gpus", "4", "--gpu-memory-mib", "16160", "-o", "karpenter", "--group", "pool"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["capacity"] == {
        names.GPU_MEM: "60",
        names.GPU_COUNT: "4",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --node, or --gpus and --gpu-memory-mib"),
        (["--gpus", "4"], "give --node, or --gpus and --gpu-memory-mib"),
        (["--gpus", "0", "--gpu-memory-mib", "1"], "--gpus 0: give a number from 1 to 128"),
        (["--gpus", "1", "--gpu-memory-mib", "0"], "--gpu-memory-mib 0: give a number of MiB from 1 to"),
        (["--gpus", "x"], "--gpus x: give a number from 1 to 128"),
        (["--node", "-", "--gpus", "1"], "--node says what the GPUs are"),
        (["--node", "/none/there"], "No such file"),
        (
            ["--gpus", "1", "--gpu-memory-mib", "9", "--unit", "2GiB"],
            "--unit 2GiB: give a memory unit",
        ),
        (["--gpus", "1", "--gpu-memory-mib", "9", "-o", "xml"], "--output xml: give one of capacity, aws"),
    ],
)
def test_an_error_is_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gpushare node-template: ")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "7",
        '{"metadata": {"name": "n1"}}',
        '{"metadata": {"annotations": {"gpushare.dev/devices": "{"}}}',
    ],
)
def test_a_node_without_gpu_labels_is_refused(tmp_path, capsys, text):
    file = tmp_path / "node.json"
    file.write_text(text)
    assert main(["--node", str(file)]) == 2
    assert capsys.readouterr().err.startswith("gpushare node-template: ")


def test_a_node_is_read_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(described(NodeMode.SHARE, MemoryUnit.GIB, V100))))
    assert main(["--node", "-", "-o", "cluster-api"]) == 0
    assert '"15"' in capsys.readouterr().out
