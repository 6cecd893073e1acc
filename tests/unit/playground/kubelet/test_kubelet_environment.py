"""What a container is started with."""

import subprocess

import msgspec
import pytest

from gpushare_playground.images.registry import Image
from gpushare_playground.kubelet.errors import BadSettings, Rejected, StartFailed
from gpushare_playground.kubelet.nodestatus import merged_resources
from gpushare_playground.kubelet.paths import Folders
from gpushare_playground.kubelet.pods.environment import command_line, expand, manifest_environment
from gpushare_playground.kubelet.pods.fit import check_fit, pod_requests
from gpushare_playground.kubelet.pods.volumes import link_mounts, make_volumes
from gpushare_playground.kubelet.podspec import Container, Pod
from gpushare_playground.kubelet.runtime.gpuruntime import inject
from gpushare_playground.kubelet.settings import Settings, node_address, read_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$", "$"),
        ("$(", "$("),
        ("cost $5", "cost $5"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text, expected):
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (None, None, ["prog", "default"]),
        (None, ["x"], ["prog", "x"]),
        (["own"], None, ["own"]),
        (["own"], ["x"], ["own", "x"]),
    ],
)
def test_command_and_args_replace_those_of_the_image(command, args, expected):
    image = Image(("i",), command=("prog",), args=("default",))
    assert command_line(Container("c", command=command, args=args), image, {}) == expected


def test_an_image_without_a_program_needs_a_command():
    with pytest.raises(StartFailed, match="no command specified"):
        command_line(Container("c"), Image(("i",)), {})


def pod_from(spec, **metadata):
    return msgspec.convert(
        {"metadata": {"name": "p", "namespace": "d", "uid": "u", **metadata}, "spec": spec}, Pod
    )


async def variables(container, sources=None, **metadata):
    async def source(kind, namespace, name):
        return (sources or {}).get((kind, name))

    pod = pod_from({"nodeName": "n", "containers": [container]}, **metadata)
    return await manifest_environment(pod, pod.spec.containers[0], ("127.64.0.1", "127.0.0.2"), source)


def field(path):
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


async def test_variables_come_from_fields_resources_config_maps_and_each_other():
    container = {
        "name": "c",
        "resources": {"limits": {"cpu": "1500m", "aliyun.com/gpu-mem": 3}},
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}],
        "env": [
            {"name": "NAME", **field("metadata.name")},
            {"name": "NODE", **field("spec.nodeName")},
            {"name": "IP", **field("status.podIP")},
            {"name": "TEAM", **field("metadata.labels['team']")},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k", "optional": True}}},
            {"name": "BOTH", "value": "$(NAME)@$(NODE)"},
        ],
    }
    sources = {("ConfigMap", "m"): {"one": b"1"}, ("Secret", "s"): {"k": b"geheim"}}
    assert await variables(container, sources, labels={"team": "t"}) == {
        "P_one": "1",
        "NAME": "p",
        "NODE": "n",
        "IP": "127.64.0.1",
        "TEAM": "t",
        "CPU": "2",
        "KEY": "geheim",
        "BOTH": "p@n",
    }


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        ({"configMapKeyRef": {"name": "x", "key": "k"}}, 'configmap "x" not found'),
        ({"fieldRef": {"fieldPath": "spec.colour"}}, "fieldRef spec.colour is not supported"),
    ],
)
async def test_a_missing_source_is_reported_by_name(origin, text):
    with pytest.raises(StartFailed, match=text) as caught:
        await variables({"name": "c", "env": [{"name": "A", "valueFrom": origin}]})
    assert caught.value.reason == "CreateContainerConfigError"


async def test_volumes_are_links_inside_the_containers_folder(tmp_path):
    async def source(kind, namespace, name):
        return {"a.txt": b"A", "b.txt": b"B"} if name == "m" else None

    host = tmp_path / "host"
    host.mkdir()
    spec = {
        "volumes": [
            {"name": "h", "hostPath": {"path": str(host)}},
            {"name": "e", "emptyDir": {}},
            {"name": "m", "configMap": {"name": "m", "items": [{"key": "a.txt", "path": "deep/x.txt"}]}},
        ],
        "containers": [
            {
                "name": "c",
                "volumeMounts": [
                    {"name": "h", "mountPath": "/host"},
                    {"name": "e", "mountPath": "/data"},
                    {"name": "m", "mountPath": "/etc/m"},
                ],
            }
        ],
    }
    pod = pod_from(spec)
    mounts = await make_volumes(pod, pod.spec.containers[0], tmp_path / "volumes", source)
    rootfs = tmp_path / "rootfs"
    link_mounts(rootfs, mounts)
    assert (rootfs / "host").resolve() == host
    assert (rootfs / "etc/m/deep/x.txt").read_text() == "A"
    assert (rootfs / "data").is_dir()
    link_mounts(rootfs, mounts)  # as at a second start, when the links exist


async def test_a_volume_that_does_not_exist_is_reported_by_name(tmp_path):
    pod = pod_from({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]})
    with pytest.raises(StartFailed, match='volume "v" is not among'):
        await make_volumes(pod, pod.spec.containers[0], tmp_path, None)


def settings(tmp_path, **more):
    return Settings("n", Folders(tmp_path), **more)


def with_gpus(tmp_path):
    (tmp_path / "node").write_text("fakegpu 1\n")
    return settings(tmp_path, fakegpu_node=tmp_path / "node", fakegpu_lib=tmp_path)


@pytest.mark.parametrize("value", [None, "", "void"])
def test_a_container_without_a_request_for_a_gpu_gets_no_driver(tmp_path, value):
    environment = {} if value is None else {"NVIDIA_VISIBLE_DEVICES": value}
    inject(environment, with_gpus(tmp_path), tmp_path)
    assert environment["FAKEGPU_VISIBLE_DEVICES"] == "void"
    assert "LD_LIBRARY_PATH" not in environment
    ran = subprocess.run([tmp_path / "nvidia-smi"], capture_output=True, text=True, check=False)
    assert ran.returncode == 127
    assert "has no GPU" in ran.stderr


@pytest.mark.parametrize("value", ["all", "none", "GPU-1,GPU-2", "0"])
def test_a_container_finds_the_fake_driver_with_the_devices_that_it_requests(tmp_path, value):
    environment = {"NVIDIA_VISIBLE_DEVICES": value, "LD_LIBRARY_PATH": "/own"}
    inject(environment, with_gpus(tmp_path), tmp_path)
    assert environment["FAKEGPU_VISIBLE_DEVICES"] == value
    assert environment["FAKEGPU_NODE"] == str(tmp_path / "node")
    assert environment["LD_LIBRARY_PATH"] == f"{tmp_path}:/own"


def test_a_missing_nvidia_smi_is_reported_clearly(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    inject({"NVIDIA_VISIBLE_DEVICES": "all"}, with_gpus(tmp_path), tmp_path)
    ran = subprocess.run([tmp_path / "nvidia-smi"], capture_output=True, text=True, check=False)
    assert ran.returncode == 127
    assert "not found on this machine" in ran.stderr


def test_capacity_that_others_have_patched_is_copied_to_allocatable():
    before = {"aliyun.com/gpu-count": "8", "cpu": "1", "gone.example/x": "5"}
    capacity, allocatable = merged_resources(
        before, {"cpu": "8"}, {"a.b/c": 4}, {"a.b/c": 3}, ["gone.example/x"]
    )
    assert capacity == {"aliyun.com/gpu-count": "8", "cpu": "8", "a.b/c": "4", "gone.example/x": "0"}
    assert allocatable == {**capacity, "a.b/c": "3"}


def requesting(**cpu):
    containers = [{"name": name, "resources": {"requests": {"cpu": amount}}} for name, amount in cpu.items()]
    return pod_from({"containers": containers})


def test_a_pod_that_does_not_fit_is_reported_with_resource_and_figures():
    with pytest.raises(Rejected) as caught:
        check_fit(requesting(a="500m"), [requesting(a="7600m")], {"cpu": "8", "pods": "110"})
    assert caught.value.reason == "OutOfcpu"
    assert (
        caught.value.problem
        == "Node didn't have enough resource: cpu, requested: 500, used: 7600, capacity: 8000"
    )
    with pytest.raises(Rejected, match="pods, requested: 1, used: 2, capacity: 2"):
        check_fit(requesting(), [requesting(), requesting()], {"pods": "2"})
    check_fit(requesting(a="400m"), [requesting(a="7600m")], {"cpu": "8"})


def test_sidecars_count_with_the_others_and_init_containers_by_the_largest():
    resources = {"resources": {"limits": {"x.y/z": 2}}}
    spec = {
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", **resources},
            {"name": "i", "resources": {"limits": {"x.y/z": 5}}},
        ],
        "containers": [{"name": "a", **resources}],
    }
    assert pod_requests(pod_from(spec)) == {"x.y/z": 7}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--node", "N!"], "is no node name"),
        (["--node", "n", "--node-ip", "8.8.8.8"], "is no loopback address"),
        (["--node", "n", "--node-ip", "x"], "is no IP address"),
        (["--node", "n", "--cpu", "many"], "is not a valid quantity"),
        (["--node", "n", "--label", "x"], "is not of the form KEY=VALUE"),
        (["--node", "n", "--pods", "0"], "give at least 1"),
        (["--node", "n", "--fakegpu-node", "/nowhere"], "belong together"),
        (["--node", "n", "--fakegpu-node", "/nowhere", "--fakegpu-lib", "/"], "is no file"),
        (["--node", "n", "--status-interval-s", "0"], "give more than 0"),
    ],
)
def test_impossible_options_are_reported_by_name(arguments, text):
    with pytest.raises(BadSettings, match=text):
        read_settings([*arguments, "--root", "/tmp/k", "--token", "t"])


def test_a_token_is_needed():
    with pytest.raises(BadSettings, match="--token: is missing"):
        read_settings(["--node", "n", "--root", "/tmp/k"])


def test_a_folder_too_deep_for_a_socket_is_refused_with_its_length(tmp_path):
    with pytest.raises(BadSettings, match=r"its path has \d+ bytes, a Unix socket's has 107 at most"):
        Folders(tmp_path / ("x" * 90)).make()


def test_a_node_keeps_its_address():
    assert node_address("n1") == node_address("n1")
    assert node_address("n1").startswith("127.0.0.")
