"""The report of ``make gpu-check``: its verdicts, whose figures it has, and where it may be stored."""

from pathlib import Path

import pytest

from benchmarks.gpu_check.report import (
    Heading,
    Report,
    Row,
    Verdict,
    WrongPlace,
    measured,
    not_run,
    place,
    promise,
)

REAL = Heading("2026-11-22", "NVIDIA H200", "NVIDIA 580.159.04", fake=False, command="make gpu-check")
FAKE = Heading("2026-11-22", "a V100", "the fake driver", fake=True, command="make gpu-check DRIVER=fakegpu")


def report(folder: Path, heading: Heading = REAL) -> Report:
    made = Report(folder / "report.md", heading)
    made.begin("Memory")
    return made


def test_the_heading_names_gpu_and_driver(tmp_path: Path) -> None:
    text = report(tmp_path).path.read_text()
    assert text.startswith("# 2026-11-22, NVIDIA H200\n")
    assert "* Driver: NVIDIA 580.159.04\n" in text
    assert "fake driver" not in text


def test_a_report_of_the_fake_driver_starts_with_a_warning(tmp_path: Path) -> None:
    _, _, warning = report(tmp_path, FAKE).path.read_text().splitlines()[:3]
    assert warning == "**The fake driver. No figure here was measured on a real GPU.**"


def test_a_failed_promise_is_listed_above_the_tables_and_in_its_row(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.add(promise("plain", "refused", "allocated", False))
    made.add(promise("pitch", "refused", "refused", True))
    made.add(measured("a context", "512 MiB"))
    made.add(not_run("nvidia-smi", "not found"))
    text = made.path.read_text()
    assert "Failed:\n\n* Memory: plain: allocated\n" in text
    assert "| plain | refused | allocated | **FAILED** |" in text
    assert "| pitch | refused | refused | held |" in text
    assert "| a context |  | 512 MiB |  |" in text
    assert "| nvidia-smi |  | not found | not run |" in text
    assert made.failed() == ["Memory: plain: allocated"]
    assert made.summary() == "1 promises held, 1 failed, 1 rows measured, 1 not run"


def test_every_row_is_written_immediately_and_no_other_file_is_left(tmp_path: Path) -> None:
    made = report(tmp_path)
    for number in range(3):
        made.add(measured(f"row {number}", number))
        text = made.path.read_text()
        assert f"| row {number} |" in text
        assert "Not finished" in text
    made.end("Ended in order")
    assert "Not finished" not in made.path.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_a_reader_with_the_file_open_keeps_a_complete_report(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.add(measured("first", "1"))
    with made.path.open() as opened:
        before = made.text()
        made.add(measured("second", "2"))
        assert opened.read() == before


def test_the_output_of_programs_stays_in_its_cell(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.add(Row("a | b", "", "| N/A |\n| 35C |", Verdict.MEASURED))
    assert "| a \\| b |  | \\| N/A \\| \\| 35C \\| |  |" in made.path.read_text()


def test_real_figures_go_to_docs_measurements_and_fake_ones_to_build(tmp_path: Path) -> None:
    assert place(tmp_path, None, "D", fake=False) == tmp_path / "docs/measurements/D-GPU.md"
    assert place(tmp_path, None, "D", fake=True) == tmp_path / "build/gpu-check/D-fake-driver.md"
    assert place(tmp_path, tmp_path / "out", "D", fake=False) == tmp_path / "out/D-GPU.md"


def test_fake_figures_are_refused_in_docs_measurements_by_any_path(tmp_path: Path) -> None:
    measurements = tmp_path / "docs" / "measurements"
    measurements.mkdir(parents=True)
    (tmp_path / "link").symlink_to(measurements)
    for folder in (
        measurements,
        measurements / "more",
        tmp_path / "link",
        tmp_path / "docs/../docs/measurements",
    ):
        with pytest.raises(WrongPlace, match="measurements of real GPUs"):
            place(tmp_path, folder, "D", fake=True)


def test_an_earlier_report_of_the_same_day_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("D-GPU.md", "D-GPU-2.md", "D-GPU-3.md"):
        path = place(tmp_path, tmp_path, "D", fake=False)
        assert path.name == name
        path.touch()
