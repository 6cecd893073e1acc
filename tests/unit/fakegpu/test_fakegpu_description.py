"""The format of descriptions: what the driver accepts, and what it rejects with which message; presets and the command."""

import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare_playground import gpus
from gpushare_playground.gpus.__main__ import main
from tests.building import ROOT, SANITIZERS
from tests.unit.fakegpu.building import build

Verdict = Callable[[bytes], str]

GOOD = """\
fakegpu 1
driver 580.95.05
cuda 13.0

gpu 0   # the first
  model Tesla V100-SXM2-16GB
  uuid GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e11
  pci 00000000:3B:00.0
  memory 16160
  compute 7.0
gpu 1
  model Tesla T4
  uuid GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e12
  pci 0000:3c:00.0
  memory 15360
  compute 7.5
path 0 1 node
"""


#: For each key of the driver's table: its name, the part of a file that it belongs to, an example.
KEYS = re.findall(
    r'\{"([a-z-]+)", PART_(HEADER|GPU|PAIRS), \w+, \w+,\s*"[^"]*",\s*"([^"]*)"',
    (ROOT / "fakegpu" / "description" / "keys.c").read_text(),
)


def reader(folder: Path) -> Iterator[Verdict]:
    with subprocess.Popen(
        [folder / "description_check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(text: bytes) -> str:
            process.stdin.write(struct.pack("=I", len(text)) + text)
            process.stdin.flush()
            head = process.stdout.read(4)
            assert len(head) == 4, "the reader exited, which it must not for any input"
            return process.stdout.read(struct.unpack("=I", head)[0]).decode("ascii")

        yield ask
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.fixture(scope="module")
def c_verdict() -> Iterator[Verdict]:
    yield from reader(build("programs"))


@pytest.fixture(scope="module", params=["", *SANITIZERS[:1]])
def verdict(request: pytest.FixtureRequest) -> Iterator[Verdict]:
    """A reader for arbitrary bytes, also built with sanitizers."""
    yield from reader(build("sanitize" if request.param else "programs") / request.param)


def changed(old: str, new: str, *, times: int = 1) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new, times).encode()


REFUSED = {
    "a misspelt key names the right one": (
        changed("memory 16160", "memry 16160"),
        "file:9: memry: unknown key; did you mean 'memory'?",
    ),
    "a key from nowhere lists those that there are": (
        changed("path 0 1 node", "bananas 3"),
        "file:17: bananas: unknown key; the keys here are gpu, model, uuid, pci, memory, compute, reserved, context,"
        " growth, serial, vbios, minor, numa, cpus, pcie, temperature, temperature-limits, power, clock, fan, utilization,"
        " persistence, ecc, nvswitch, mig, instance, process, fault, path, nvlink",
    ),
    "a GPU without a size": (
        changed("  memory 16160\n", ""),
        "file:5: gpu 0: 'memory' is missing; add a line such as 'memory 16160'",
    ),
    "a UUID twice": (
        changed("7e12", "7e11"),
        "file:11: gpu 1: its 'uuid' is that of gpu 0 too; give every GPU its own",
    ),
    "a PCI address twice, written otherwise": (
        changed("0000:3c:00.0", "0000:3b:00.0"),
        "file:11: gpu 1: its 'pci' is that of gpu 0 too; give every GPU its own",
    ),
    "a minor number that another GPU has by default": (
        changed("  compute 7.5\n", "  compute 7.5\n  minor 0\n"),
        "file:11: gpu 1: its 'minor' is that of gpu 0 too; give every GPU its own",
    ),
    "memory with a unit": (
        changed("memory 16160", "memory 16GiB"),
        "file:9: memory: wants whole MiB from 1 to 16777216, as in 'memory 16160'; found '16GiB'",
    ),
    "memory without a value": (
        changed("memory 16160", "memory"),
        "file:9: memory: wants whole MiB from 1 to 16777216, as in 'memory 16160'; found ''",
    ),
    "a key given twice": (
        changed("memory 16160", "memory 16160\n  memory 16384"),
        "file:10: memory: given twice; keep one of the two",
    ),
    "a key of the header under a GPU": (
        changed("memory 16160", "driver 1"),
        "file:9: driver: belongs in the header, before the first 'gpu'",
    ),
    "a key of a GPU in the header": (
        changed("cuda 13.0", "cuda 13.0\nmemory 3"),
        "file:4: memory: belongs under a 'gpu' line",
    ),
    "a GPU after the pairs": (
        changed("path 0 1 node", "path 0 1 node\ngpu 2"),
        "file:18: gpu: belongs before the first 'path' or 'nvlink'",
    ),
    "GPUs out of order": (
        changed("\ngpu 1", "\ngpu 2"),
        "file:11: gpu: wants the next whole number, counted from 0, as in 'gpu 0'; found '2'",
    ),
    "a pair with a GPU that is not there": (
        changed("path 0 1 node", "nvlink 0 5 2"),
        "file:17: nvlink: names a GPU that is not there; 2 are described above",
    ),
    "a GPU beside itself": (
        changed("path 0 1 node", "path 1 1 node"),
        "file:17: path: wants two GPUs, and pix, pxb, phb, node or sys, as in 'path 0 1 node'; found '1 1 node'",
    ),
    "more NVLinks than a GPU has": (
        changed("path 0 1 node", "nvlink 0 1 12").replace(
            b"  compute 7.5\n", b"  compute 7.5\n  nvswitch 8\n"
        ),
        "file:11: gpu 1: has 20 NVLinks; leave at most 18",
    ),
    "processes above the GPU's memory": (
        changed("memory 16160", "memory 16160\n  reserved 160\n  process 7 16001"),
        "file:5: gpu 0: reserved and processes take 16161 MiB of 16160 MiB; lower them",
    ),
    "a fault that does not exist": (
        changed("memory 16160", "memory 16160\n  fault loss"),
        "file:10: fault: wants lost, reset-required, unknown-error, recovery ACTION, xid N [COUNT], ecc-corrected N or"
        " ecc-uncorrected N, as in 'fault xid 79'; found 'loss'",
    ),
    "another format": (
        b"fakegpu 2\n",
        "file:1: fakegpu: wants the version of the format, as in 'fakegpu 1'; found '2'",
    ),
    "another file": (b"hello world\n", "file:1: hello: the file must begin with 'fakegpu 1'"),
    "an empty file": (b"", "file:1: fakegpu: missing; add a line such as 'fakegpu 1'"),
    "no driver": (
        b"fakegpu 1\ncuda 13.0\n",
        "file:1: driver: missing; add a line such as 'driver 580.95.05'",
    ),
    "a line end of Windows": (
        GOOD.replace("\n", "\r\n").encode(),
        "file:1: byte 0x0d: only printable ASCII is allowed outside comments",
    ),
    "a zero byte": (
        changed("memory 16160", "memory 16160\0"),
        "file:9: byte 0x00: only printable ASCII is allowed outside comments",
    ),
    "a line without end": (b"fakegpu 1\n#" + b"x" * 511, "file:2: line: longer than 511 bytes; shorten it"),
    "a file without end": (
        b"#\n" * (1 << 20),
        "file:1: file: larger than 1048576 bytes; it is no description",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_mistake_is_reported_with_file_line_key_and_advice(
    text: bytes, message: str, c_verdict: Verdict
) -> None:
    assert c_verdict(text) == message


ACCEPTED = {
    "the good one": GOOD.encode(),
    "without its last line end": GOOD.rstrip().encode(),
    "comments of any bytes": changed(
        "# the first", "# die erste \N{LATIN SMALL LETTER U WITH DIAERESIS} \x01"
    ),
    "a node without GPUs": b"fakegpu 1\ndriver 580.95.05\ncuda 13.0\n",
    "a broken driver": changed("cuda 13.0", "cuda 13.0\nfault version-mismatch"),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_valid_description_is_accepted(text: bytes, c_verdict: Verdict) -> None:
    assert c_verdict(text) == ""


@pytest.mark.parametrize(("name", "part", "example"), KEYS)
def test_every_keys_example_is_valid(name: str, part: str, example: str, c_verdict: Verdict) -> None:
    lines = GOOD.splitlines()
    same = [at for at, line in enumerate(lines) if line.split()[:1] == [name]]
    if name == "gpu":
        assert lines[same[0]].startswith(example)
    elif same:
        lines[same[0]] = example
    else:
        lines.insert({"HEADER": 3, "GPU": 9, "PAIRS": 17}[part], example)
    if name in ("mig", "instance"):
        # Few models can be divided.
        lines[lines.index("  memory 16160")] = "  memory 81920"
        lines[lines.index("  compute 7.0")] = "  compute 8.0"
        lines[9:9] = ["  mig on"] if name == "instance" else []
    assert c_verdict("\n".join(lines).encode()) == ""


# --- arbitrary input --------------------------------------------------------------------------

WORDS = st.sampled_from(
    [name for name, _, _ in KEYS]
    + [word for _, _, example in KEYS for word in example.split()]
    + [
        "memry",
        "gpuu",
        "0",
        "1",
        "2",
        "00",
        "31",
        "4294967295",
        "4294967296",
        "99999999999",
        "-1",
        "1.0",
        "100.1",
    ]
    + [
        "0-3,2",
        "5-1",
        "0,1,2-9",
        "1-2-3",
        ",",
        "-",
        "on",
        "off",
        "lost",
        "xid",
        "recovery",
        "gpu-reset",
        "GPU-",
        "x" * 60,
        "ecc-corrected",
    ]
)
LINES = st.lists(WORDS, max_size=6).map(" ".join)
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 20), st.one_of(LINES, st.sampled_from(GOOD.splitlines())), st.booleans()),
    max_size=5,
)
FEW = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FEW
@given(mutations=MUTATIONS)
def test_a_description_with_mistakes_is_read_or_rejected_in_one_line(
    mutations: list[tuple[int, str, bool]], verdict: Verdict
) -> None:
    lines = GOOD.splitlines()
    for at, line, insert in mutations:
        lines[at : at if insert else at + 1] = [line]
    found = verdict("\n".join(lines).encode())
    assert not found or re.fullmatch(r"file:\d+: .+", found)


@FEW
@given(
    text=st.one_of(st.binary(max_size=600), st.binary(max_size=200).map(lambda tail: GOOD.encode() + tail))
)
def test_no_bytes_crash_the_reader(text: bytes, verdict: Verdict) -> None:
    message = verdict(text)
    assert "\n" not in message


# --- presets and writing ------------------------------------------------------------------------


@pytest.mark.parametrize("name", gpus.PRESETS)
def test_the_driver_accepts_every_preset(name: str, c_verdict: Verdict) -> None:
    assert c_verdict(gpus.render(gpus.preset(name, "n1")).encode()) == ""


def test_presets_have_the_memory_that_nvml_reports_for_the_models() -> None:
    totals = {name: [gpu.total_mib for gpu in gpus.preset(name, "n1").gpus] for name in gpus.PRESETS}
    assert totals == {
        "v100-16160": [16160],
        "v100-16384": [16384],
        "t4": [15360],
        "a100-80gb": [81920],
        "h100-80gb": [81559],
        "h200-141gb": [143771],
        "mixed": [15360, 15360, 81920, 81920],
        "core-mem-4": [16160] * 4,
        "t4-r615": [15360],
        "dgx-h200": [143771] * 8,
        "two-islands": [81920] * 8,
        "mig": [81920] * 2,
    }


def test_uuids_follow_from_the_nodes_name_and_are_unique() -> None:
    def uuids(node: str) -> list[str]:
        return [gpu.uuid for gpu in gpus.preset("dgx-h200", node).gpus]

    assert uuids("n1") == uuids("n1")
    assert len({*uuids("n1"), *uuids("n2"), *uuids("n11")}) == 24


def test_the_driver_accepts_faults_and_processes(c_verdict: Verdict) -> None:
    node = gpus.preset("mixed", "n1")
    broken = replace(
        node.gpus[0],
        fault="lost",
        recovery="bus-reset",
        xids={79: 2, 48: 1},
        ecc_corrected=3,
        ecc_uncorrected=4,
        processes=(gpus.Process(7, 100), gpus.Process(7, 5, "graphics", "Xorg")),
    )
    node = replace(node, gpus=(broken, *node.gpus[1:]), fault="version-mismatch")
    assert c_verdict(gpus.render(node).encode()) == ""


# --- the command ------------------------------------------------------------------------------------


def test_the_command_writes_a_preset_and_checks_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKEGPU_NODE", "")
    assert main(["v100-16160", "--node", "n1", "--count", "3"]) == 0
    path = tmp_path / "node.gpus"
    path.write_text(capsys.readouterr().out)
    assert path.read_text() == gpus.render(gpus.preset("v100-16160", "n1", count=3))
    build("programs")
    assert main(["--check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: good\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["v100"], "v100: no such preset; there are v100-16160, v100-16384, t4"),
        (
            ["mixed", "--count", "3"],
            "mixed: is a whole node, whose number of GPUs is its own; leave the count out",
        ),
        (["t4", "--count", "99"], "t4: a node has 0 to 32 GPUs, not 99"),
        (["--check", "nowhere.gpus"], "nowhere.gpus: no such file"),
    ],
)
def test_the_command_reports_a_mistake_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_pages_example_is_valid_and_has_every_key(c_verdict: Verdict) -> None:
    page = (ROOT / "docs" / "developer" / "fakegpu.md").read_text()
    found = re.search(r"```\n(fakegpu 1.*?)```", page, re.DOTALL)
    assert found
    assert c_verdict(found[1].encode()) == ""
    keys = {line.split()[0] for line in found[1].splitlines() if line.strip()}
    assert keys == {name for name, _, _ in KEYS}
    assert [name for name in gpus.PRESETS if f"`{name}`" not in page] == []
