"""The library's parser of the limits file: what it accepts, and that it rejects all else with a reason."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.isolation.building import MIB, build

GPU = "GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e11"
OTHER = "GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e12"
GOOD = f"""gpushare-limits 1.1
container default/job-1/main 8c0f-11
gpu {GPU} memory_bytes={2154 * MIB} core_percent=30 core_policy=idle core_class=batch
gpu {OTHER} memory_bytes=0
"""


@pytest.fixture(scope="module")
def check() -> Path:
    return build("linked") / "limits_check"


def read(check: Path, path: Path, text: str | bytes) -> subprocess.CompletedProcess[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return subprocess.run([check, path], capture_output=True, text=True, timeout=10, check=False)


def test_a_file_has_container_gpus_memory_and_share(check: Path, tmp_path: Path) -> None:
    completed = read(check, tmp_path / "limits", GOOD)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.splitlines() == [
        "default/job-1/main 8c0f-11",
        f"{GPU} {2154 * MIB} 30 idle batch",
        f"{OTHER} 0 0 hard inferred",
    ]


def test_unknown_lines_and_keys_of_a_higher_minor_version_are_ignored(check: Path, tmp_path: Path) -> None:
    newer = GOOD.replace("limits 1.1", "limits 1.7").replace("batch\n", "batch colour=blue\nlink a b\n")
    assert read(check, tmp_path / "limits", newer).stdout == read(check, tmp_path / "limits", GOOD).stdout
    assert read(check, tmp_path / "limits", newer.replace("1.7", "1.1")).returncode == 1


def test_a_file_of_an_older_minor_version_has_the_same_meaning(check: Path, tmp_path: Path) -> None:
    """Even with a key that was added later."""
    older = GOOD.replace("limits 1.1", "limits 1.0")
    assert read(check, tmp_path / "limits", older).stdout == read(check, tmp_path / "limits", GOOD).stdout
    without = read(check, tmp_path / "limits", older.replace(" core_class=batch", ""))
    assert without.stdout.splitlines()[1] == f"{GPU} {2154 * MIB} 30 idle inferred"


def test_the_class_of_work_is_read_per_gpu(check: Path, tmp_path: Path) -> None:
    completed = read(
        check, tmp_path / "limits", GOOD.replace("memory_bytes=0", "memory_bytes=0 core_class=latency")
    )
    assert [line.split()[-1] for line in completed.stdout.splitlines()[1:]] == ["batch", "latency"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("limits 1.1", "limits 2.0", "line 1: version 2.0, and this library reads 1.x"),
        ("gpushare-limits 1.1\n", "", "line 1: 'container default/job-1/main 8c0f-11' is no limits file"),
        ("memory_bytes=0", "memory_bytes=1", "line 4: 'memory_bytes=1': a multiple of 1048576"),
        ("memory_bytes=0", "memory_bytes=-1048576", "line 4"),
        ("memory_bytes=0", f"memory_bytes={1 << 64}", "line 4"),
        ("memory_bytes=0", f"memory_bytes={1 << 49}", "line 4"),
        (" memory_bytes=0", "", "has no memory_bytes"),
        ("memory_bytes=0", "memory_bytes=0 memory_bytes=0", "unknown or there twice"),
        ("core_percent=30", "core_percent=0", "from 1 to 100"),
        ("core_percent=30", "core_percent=101", "from 1 to 100"),
        ("policy=idle", "policy=soft", "'hard' or 'idle'"),
        ("class=batch", "class=fast", "'latency' or 'batch'"),
        ("class=batch", "class=batch core_class=batch", "unknown or there twice"),
        (OTHER, GPU, "is there twice"),
        (OTHER, "0", "a GPU's UUID is wanted"),
        ("8c0f-11\n", "8c0f-11\ncontainer a/b/c d\n", "line 3: a second 'container' line"),
        ("container default/job-1/main 8c0f-11\n", "", "no 'container' line"),
        ("memory_bytes=0\n", "memory_bytes=0", "ends in the middle of a line"),
        ("memory_bytes=0\n", "memory_bytes=0\n\n", "line 5"),
        ("memory_bytes=0\n", "memory_bytes=0\nshare 1\n", "line 5: 'share 1' is unknown"),
        ("memory_bytes=0\n", "memory_bytes=0\nallowance 1\n", "line 5: 'allowance 1' is unknown"),
        (
            "memory_bytes=0\n",
            "memory_bytes=0\nallowance\nallowance\n",
            "line 6: 'allowance' is unknown or there twice",
        ),
    ],
)
def test_an_invalid_file_is_rejected_with_the_line(
    check: Path, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    assert old in GOOD
    rejected = read(check, tmp_path / "limits", GOOD.replace(old, new))
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert reason in rejected.stderr
    assert str(tmp_path / "limits") in rejected.stderr


def test_more_gpus_than_a_container_can_have_are_rejected(check: Path, tmp_path: Path) -> None:
    lines = [f"gpu GPU-{number} memory_bytes=0\n" for number in range(17)]
    header = "".join(GOOD.splitlines(keepends=True)[:2])
    assert read(check, tmp_path / "limits", header + "".join(lines[:16])).returncode == 0
    assert "more than 16 GPUs" in read(check, tmp_path / "limits", header + "".join(lines)).stderr


@pytest.mark.parametrize("size", [0, 65537, 1 << 20])
def test_empty_and_huge_files_are_rejected(check: Path, tmp_path: Path, size: int) -> None:
    assert read(check, tmp_path / "limits", b"a" * size).returncode == 1


def test_an_absent_file_and_a_folder_are_rejected(check: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        rejected = subprocess.run([check, path], capture_output=True, text=True, timeout=10, check=False)
        assert rejected.returncode == 1
        assert str(path) in rejected.stderr


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.binary(max_size=8)),
        min_size=1,
        max_size=4,
    )
)
def test_no_edit_of_a_good_file_crashes_the_parser(
    check: Path, tmp_path: Path, edits: list[tuple[int, int, bytes]]
) -> None:
    text = GOOD.encode()
    for start, length, fresh in edits:
        text = text[:start] + fresh + text[start + length :]
    completed = read(check, tmp_path / "limits", text)
    assert completed.returncode in (0, 1)
    assert bool(completed.stderr) == (completed.returncode == 1)
    assert completed.stderr.isprintable() or completed.stderr.rstrip("\n").isprintable()
