"""How containers get their GPU, by what the node reports and what is described on it."""

import pytest

from gpushare.nodeagent.runtime.cdi.derive_spec import Derived
from gpushare.nodeagent.runtime.selection import Asked, Reported, choose, needs_annotation

ALL = Derived(b"{}", "/var/run/cdi/nvidia.yaml", frozenset({"GPU-a", "GPU-b"}))
ONE = Derived(b"{}", "/etc/cdi/nvidia.yaml", frozenset({"GPU-a"}))
GPUS = ("GPU-a", "GPU-b")


@pytest.mark.parametrize(
    ("runtime", "derived", "way", "why"),
    [
        (
            "containerd://2.4.2",
            ALL,
            "cdi",
            "containerd://2.4.2 supports CDI, and /var/run/cdi/nvidia.yaml describes",
        ),
        ("cri-o://1.31.0", ALL, "cdi", "describes every GPU"),
        (
            "containerd://2.4.2",
            ONE,
            "nvidia",
            "the CDI description /etc/cdi/nvidia.yaml does not have GPU GPU-b",
        ),
        (
            "containerd://2.4.2",
            None,
            "nvidia",
            "no CDI description of this node's GPUs was found (x.yaml: bad)",
        ),
        ("containerd://1.7.24", ALL, "nvidia", "only with enable_cdi = true"),
        ("containerd://1.6.20", ALL, "nvidia", "older than containerd 1.7"),
        ("cri-o://1.22.9", ALL, "nvidia", "older than cri-o 1.23"),
        ("docker://20.10.7", ALL, "nvidia", "gets no CDI names"),
        (
            "playground://0.1.0",
            ALL,
            "nvidia",
            "it is unknown whether the container runtime playground://0.1.0 supports CDI",
        ),
        ("", ALL, "nvidia", "(not reported)"),
        ("containerd://devel", ALL, "nvidia", "it is unknown whether"),
    ],
)
def test_automatic_choice(runtime: str, derived: Derived | None, way: str, why: str) -> None:
    choice = choose(Asked.AUTO, Reported(runtime), derived, GPUS, ["x.yaml: bad"])
    assert choice.way == way
    assert why in choice.why
    assert choice.trouble == ""


def test_nvidias_runtime_is_chosen_if_the_user_sets_it() -> None:
    choice = choose(Asked.NVIDIA, Reported("containerd://2.4.2"), ALL, GPUS, [])
    assert (choice.way, choice.trouble) == ("nvidia", "")


@pytest.mark.parametrize(
    ("runtime", "derived", "trouble"),
    [
        ("containerd://2.4.2", ALL, ""),
        ("containerd://1.7.24", ALL, ""),
        ("unheard-of://1.0", ALL, ""),
        ("containerd://1.6.20", ALL, "containerd://1.6.20 is older than containerd 1.7"),
        (
            "containerd://2.4.2",
            None,
            "no CDI description of this node's GPUs was found. Generate a CDI spec",
        ),
        ("containerd://2.4.2", ONE, "does not have GPU GPU-b. Generate a CDI spec on the node"),
    ],
)
def test_if_cdi_is_requested_what_is_missing_is_reported(
    runtime: str, derived: Derived | None, trouble: str
) -> None:
    choice = choose(Asked.CDI, Reported(runtime), derived, GPUS, [])
    assert choice.way == "cdi"
    assert trouble in choice.trouble
    assert bool(choice.trouble) == bool(trouble)


def test_a_node_without_a_gpu_is_no_cdi_fault() -> None:
    assert choose(Asked.CDI, Reported("containerd://2.4.2"), None, (), []).trouble == ""
    assert choose(Asked.AUTO, Reported("containerd://2.4.2"), None, (), []).way == "nvidia"


@pytest.mark.parametrize(
    ("kubelet", "needed"),
    [("v1.28.15", True), ("v1.29.0", False), ("v1.36.3", False), ("", False), ("v1.28.3-eks-1", True)],
)
def test_only_kubelets_before_1_29_need_the_annotation(kubelet: str, needed: bool) -> None:
    assert needs_annotation(Reported("", kubelet)) is needed
