"""Waiting periods promised by one agent are continued by the next one."""

import errno
from pathlib import Path

import pytest

from gpushare.nodeagent.driver.health import CriticalXid
from gpushare.nodeagent.isolation.watchdog.violations import Holder, OveruseState
from gpushare.nodeagent.node.period_file import FILE, PeriodFile, Periods

PERIODS = Periods(
    {"GPU-1": CriticalXid(79, 1000.5)},
    {"GPU-2": 900.25},
    (OveruseState(Holder("default/a", "uid", "c", "GPU-3", 3072, 30), "memory", 12.5, 1001.0, above=True),),
)


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text("cb78b72d-5293-45dd-931e-0ddb4372e8da\n")
    return path


def test_another_process_reads_what_was_written(tmp_path: Path, boot: Path) -> None:
    PeriodFile(tmp_path / "gpushare", boot).write(PERIODS)
    found = PeriodFile(tmp_path / "gpushare", boot).read()
    assert (found.xids, found.lost_since_s, found.overuse) == (
        PERIODS.xids,
        PERIODS.lost_since_s,
        PERIODS.overuse,
    )
    assert [one.name for one in (tmp_path / "gpushare").iterdir()] == [FILE]


def test_a_reboot_ends_all_periods(tmp_path: Path, boot: Path) -> None:
    PeriodFile(tmp_path, boot).write(PERIODS)
    boot.write_text("another\n")
    assert PeriodFile(tmp_path, boot).read() == Periods()


def test_the_file_goes_with_the_last_period(tmp_path: Path, boot: Path) -> None:
    file = PeriodFile(tmp_path, boot)
    file.write(PERIODS)
    assert file.there
    # The next agent removes it, too.
    PeriodFile(tmp_path, boot).write(Periods())
    assert not file.there


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"xids": 3}'])
def test_a_damaged_file_is_reported_and_replaced(
    tmp_path: Path, boot: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    file = PeriodFile(tmp_path, boot)
    assert file.read() == Periods()
    assert "cannot be read" in caplog.text
    file.write(PERIODS)
    assert file.read().xids == PERIODS.xids


def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, boot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpushare").write_text("not a folder")
    file = PeriodFile(tmp_path / "gpushare", boot)
    file.write(PERIODS)
    file.write(PERIODS)
    assert len(caplog.records) == 1
    (tmp_path / "gpushare").unlink()
    file.write(PERIODS)
    assert file.there


def test_after_its_removal_the_file_is_not_written(tmp_path: Path, boot: Path) -> None:
    (tmp_path / f".{FILE}.0123").touch()  # an agent was killed during a write
    file = PeriodFile(tmp_path, boot)
    file.write(PERIODS)
    file.clear()
    file.write(PERIODS)
    assert [one.name for one in tmp_path.iterdir()] == [boot.name]


def test_a_full_disk_leaves_no_files(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    PeriodFile(tmp_path, boot).write(PERIODS)
    assert [*tmp_path.iterdir()] == [boot]
