"""Image names and the programs behind them."""

import io
import os
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from gpushare_playground.images.errors import MalformedImage, UnknownImage
from gpushare_playground.images.programs import bandwidth, benchmark, mnist
from gpushare_playground.images.programs.descent import Neuron
from gpushare_playground.images.programs.sight import introduce, share
from gpushare_playground.images.registry import Registry, inside_path, normalised

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLES = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample"


def documented_containers():
    for file in sorted(EXAMPLES.glob("0[1-5]*.yaml")):
        spec = yaml.safe_load(file.read_text())["spec"]["template"]["spec"]
        yield from (pytest.param(one, id=file.stem) for one in spec["containers"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("busybox", "busybox:latest"),
        ("docker.io/library/busybox:1", "busybox:1"),
        ("host:5000/a/b", "host:5000/a/b:latest"),
        ("a/b@sha256:00", "a/b:latest"),
    ],
)
def test_names_are_compared_in_one_form(name, expected):
    assert normalised(name) == expected


@pytest.mark.parametrize("name", ["busybox", "busybox:1.36", "docker.io/library/ubuntu:22.04", "python:3.11"])
def test_images_of_small_manifests_are_found(name):
    assert Registry().find(name)


def test_an_unknown_image_is_reported_with_the_known_ones():
    with pytest.raises(UnknownImage, match=r'image "nginx".*known images: .*busybox') as caught:
        Registry().find("nginx")
    assert "busybox:*" in caught.value.known


def test_every_region_of_the_registry_is_known():
    registry = Registry()
    assert registry.find(f"{SAMPLES}:tensorflow-1.5") is registry.find(
        "registry.cn-hangzhou.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5"
    )


@pytest.mark.parametrize("container", list(documented_containers()))
def test_the_documented_commands_resolve_in_their_images(container, tmp_path):
    image = Registry().find(container["image"])
    commands = image.furnish(tmp_path)
    image.furnish(tmp_path)  # as at a restart, when everything exists
    line = container.get("command") or [*image.command, *image.args]
    cwd = inside_path(tmp_path, container.get("workingDir", image.workdir))
    cwd.mkdir(parents=True, exist_ok=True)
    started = subprocess.Popen(
        line,
        cwd=cwd,
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
            "ALIYUN_COM_GPU_MEM_DEV": "16",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    with started, started.stdout as out:
        first = out.readline()
        rest = [out.readline() for _ in range(4)]
        started.kill()
    assert "a stand-in program on a simulated GPU" in first
    assert "share of one GPU's memory: 4 / 16 = 0.25\n" in rest


def test_the_benchmark_runs_as_documented(tmp_path):
    image = Registry().find(f"{SAMPLES}:benchmark-tensorflow-2.2.3")
    commands = image.furnish(tmp_path)
    ran = subprocess.run(
        ["bash", "run.sh", "--num_batches=2", "--batch_size=8", "--pause_s=0"],
        cwd=tmp_path / "root",
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1].startswith("1\t")


def test_programs_end_when_their_steps_are_done(capsys):
    assert mnist.main(["--max_steps=3", "--pause_s=0", "--unknown_option=1"]) == 0
    assert benchmark.main(["--num_batches=2", "--pause_s=0"]) == 0
    assert bandwidth.main(["--rounds=1", "--size_mib=1", "--round_s=0"]) == 0
    out = capsys.readouterr().out
    assert "Accuracy at step 3" in out
    assert "round 1:" in out


def test_the_small_training_learns():
    neuron = Neuron(seed=1)
    for _ in range(200):
        neuron.step()
    assert neuron.accuracy() > 0.85


@pytest.mark.parametrize(
    ("container", "device", "expected"), [("4", "16", Fraction(1, 4)), ("5", "4", None), ("x", "4", None)]
)
def test_the_share_is_container_by_device(container, device, expected):
    environment = {"ALIYUN_COM_GPU_MEM_CONTAINER": container, "ALIYUN_COM_GPU_MEM_DEV": device}
    assert share(environment) == expected


def test_a_container_without_a_share_does_not_mention_one():
    out = io.StringIO()
    introduce("x", out, {})
    assert "share" not in out.getvalue()


def test_a_users_own_image_wins_and_is_found_when_it_is_added(tmp_path):
    registry = Registry([tmp_path])
    with pytest.raises(UnknownImage):
        registry.find("mine")
    (tmp_path / "hello.sh").write_text("echo hello\n")
    (tmp_path / "mine.toml").write_text(
        '[[image]]\nnames = ["mine"]\ncommand = ["hello", "a b"]\nworkdir = "/w"\n'
        'files = { "/w/hello.sh" = "hello.sh" }\nprograms = { hello = "sh {here}/hello.sh", py = "{python} -V" }\n'
    )
    registry.reload()
    image = registry.find("mine:latest")
    commands = image.furnish(tmp_path / "rootfs")
    ran = subprocess.run([commands / "hello"], capture_output=True, text=True, check=True)
    assert ran.stdout == "hello\n"
    assert (tmp_path / "rootfs/w/hello.sh").exists()
    assert (commands / "py").read_text() == f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -V "$@"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[image]", "cannot be read as an image description"),
        ("[[image]]\nnames = 3\n", "cannot be read"),
        ('[[image]]\nnames = ["a"]\ncolour = "red"\n', "colour"),
        ("[[image]]\nnames = []\n", "has no name"),
        ('[[image]]\nnames = ["a"]\nfiles = { "/x" = "none" }\n', "which is no file"),
        ('[[image]]\nnames = ["a"]\nprograms = { x = "{what}" }\n', "is broken"),
        ('[[image]]\nnames = ["a"]\nprograms = { "a/b" = "x" }\n', "no name of a command"),
    ],
)
def test_a_broken_description_is_reported_by_file_and_fault(tmp_path, text, fault):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(MalformedImage, match=fault) as caught:
        Registry([tmp_path])
    assert caught.value.subject == str(tmp_path / "x.toml")


def test_a_folder_of_images_must_exist(tmp_path):
    with pytest.raises(MalformedImage, match="is no folder"):
        Registry([tmp_path / "none"])


def test_a_path_cannot_leave_the_containers_folder(tmp_path):
    assert inside_path(tmp_path, "/../../etc/passwd") == tmp_path / "etc/passwd"
