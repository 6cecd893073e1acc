"""Whether a GPU may be allocated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.nodeagent.driver.health import PASSED_OVER, HealthBook

GPU = "GPU-1"


def test_a_gpu_without_records_is_healthy() -> None:
    assert HealthBook().reason(GPU) == ""


def test_one_failed_probe_takes_it_out_and_two_good_ones_bring_it_back() -> None:
    book = HealthBook()
    book.take_probe(GPU, "GPU is lost", 0.0)
    assert (book.reason(GPU), book.failing) == ("GPU is lost", True)
    book.take_probe(GPU, "", 5.0)
    assert book.reason(GPU) == "GPU is lost"
    book.take_probe(GPU, "", 10.0)
    assert (book.reason(GPU), book.failing) == ("", False)


def test_a_flapping_gpu_stays_out() -> None:
    book = HealthBook()
    for at in range(10):
        book.take_probe(GPU, "GPU is lost" if at % 2 == 0 else "", float(at))
        assert book.reason(GPU)


def test_an_xid_counts_until_the_gpu_was_quiet_and_healthy_for_long_enough() -> None:
    book = HealthBook(xid_recovery_s=300.0)
    assert book.take_xid(GPU, 48, 1000.0)
    for at in (1010.0, 1299.0):
        book.take_probe(GPU, "", at)
        assert book.reason(GPU) == "critical error XID 48, for which NVIDIA advises a reset"
    book.take_probe(GPU, "", 1300.0)
    assert book.reason(GPU) == ""


def test_a_lost_gpus_xid_is_reported_in_addition_to_its_loss() -> None:
    book = HealthBook(good_probes=1)
    book.take_probe(GPU, "GPU is lost", 0.0)
    book.take_xid(GPU, 79, 1.0)
    assert book.reason(GPU) == "GPU is lost and critical error XID 79"
    book.take_probe(GPU, "", 5.0)
    assert book.reason(GPU) == "critical error XID 79"


def test_a_second_xid_restarts_the_wait() -> None:
    book = HealthBook(good_probes=1, xid_recovery_s=300.0)
    book.take_xid(GPU, 48, 0.0)
    book.take_xid(GPU, 79, 200.0)
    book.take_probe(GPU, "", 400.0)
    assert book.reason(GPU) == "critical error XID 79"


def test_a_gpu_that_does_not_exist_any_more_does_not_count_as_failing() -> None:
    book = HealthBook()
    book.take_probe(GPU, "Not Found", 0.0)
    book.take_probe("GPU-2", "GPU is lost", 0.0)
    book.forget([GPU])
    assert (book.reason(GPU), book.reason("GPU-2"), book.failing) == ("", "GPU is lost", True)
    book.forget(["GPU-2", "GPU-3"])
    assert not book.failing


def test_another_process_continues_the_wait_after_an_xid() -> None:
    before = HealthBook(xid_recovery_s=300.0)
    before.take_xid(GPU, 48, 1000.0)
    book = HealthBook(xid_recovery_s=300.0, xids=before.xids)
    for at in (1100.0, 1299.0):
        book.take_probe(GPU, "", at)
        assert book.reason(GPU) == "critical error XID 48, for which NVIDIA advises a reset"
    book.take_probe(GPU, "", 1300.0)
    assert (book.reason(GPU), book.xids) == ("", {})


@pytest.mark.parametrize(
    ("xid", "reason"),
    [
        pytest.param(31, "", id="the application is restarted"),
        pytest.param(63, "", id="nothing is asked for"),
        pytest.param(94, "", id="an ECC error that one application felt"),
        pytest.param(154, "", id="the recovery that probes read"),
        pytest.param(
            109, "critical error XID 109, for which NVIDIA advises a reset", id="context switch timeout"
        ),
        pytest.param(
            95, "critical error XID 95, for which NVIDIA advises a reset", id="an ECC error that all may feel"
        ),
        pytest.param(74, "critical error XID 74", id="a procedure of its own"),
        pytest.param(999, "critical error XID 999", id="not in the catalogue"),
    ],
)
def test_an_xid_counts_as_nvidias_catalogue_says(xid: int, reason: str) -> None:
    book = HealthBook()
    assert book.take_xid(GPU, xid, 0.0) is bool(reason)
    assert (book.reason(GPU), xid in PASSED_OVER) == (reason, not reason)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["", "lost"]), st.integers(1, 200)), max_size=30))
def test_a_gpu_that_stays_quiet_and_healthy_is_always_taken_back(steps: list[tuple[bool, str, int]]) -> None:
    book, now_s = HealthBook(), 0.0
    for is_xid, fault, after_s in steps:
        now_s += after_s
        if is_xid:
            book.take_xid(GPU, 79, now_s)
        else:
            book.take_probe(GPU, fault, now_s)
    for _ in range(2):
        now_s += 301.0
        book.take_probe(GPU, "", now_s)
    assert book.reason(GPU) == ""
