"""What is logged of one pod's cycle."""

import logging

import pytest

from gpushare.ledger import Ledger
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.observability.cycle_log import log_bound, log_filtered, log_prioritized
from gpushare.scheduler.server import protocol

BODY = b'{"Pod":{"metadata":{"name":"a","namespace":"default","uid":"u"},"spec":{"containers":[]}},"NodeNames":["n1","n2"]}'


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gpushare.scheduler.observability.cycle_log")


def test_filter_logs_how_many_fit_and_why_one_does_not(caplog: pytest.LogCaptureFixture) -> None:
    filter_request = Bodies().read(BODY)
    log_filtered(
        filter_request, protocol.filter_answer(filter_request.args, ["n1"], {"n2": "it is full"}, {})
    )
    log_filtered(
        filter_request, protocol.filter_answer(filter_request.args, [], {}, {"n1": "gone", "n2": "gone"})
    )
    log_filtered(filter_request, protocol.filter_answer(filter_request.args, ["n1", "n2"], {}, {}))
    assert caplog.messages == [
        "pod default/a: filter: 1 of 2 nodes fit; n2: it is full",
        "pod default/a: filter: 0 of 2 nodes fit; n1: gone",
        "pod default/a: filter: 2 of 2 nodes fit",
    ]


def test_prioritize_logs_the_best_node(caplog: pytest.LogCaptureFixture) -> None:
    filter_request = Bodies().read(BODY)
    log_prioritized(filter_request, protocol.priorities([("n1", 3), ("n2", 10)]))
    log_prioritized(filter_request, protocol.priorities([]))
    assert caplog.messages == [
        "pod default/a: prioritize: n2 first, with 10",
        "pod default/a: prioritize: all nodes score the same",
    ]


def test_a_pod_without_a_share_is_bound_without_one(caplog: pytest.LogCaptureFixture) -> None:
    log_bound(Ledger(), protocol.BindingArgs("default", "a", "u", "n1"))
    assert caplog.messages == ["pod default/a: bound to node n1"]
