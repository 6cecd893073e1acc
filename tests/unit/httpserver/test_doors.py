"""Which pages are answered at which address."""

from gpushare.httpserver.listeners import ALL, METRICS, PROBES, REST, Door, doors, elsewhere, kind_of

HERE, THERE, MORE = (("127.0.0.1", port) for port in (1, 2, 3))


def test_every_page_is_of_one_kind() -> None:
    expected = {
        path: kind_of(path) for path in ("/healthz", "/readyz", "/metrics", "/metrics/dcgm", "/usage", "/")
    }
    assert list(expected.values()) == [PROBES, PROBES, METRICS, METRICS, REST, REST]
    # A path that only begins like one is not one.
    assert [kind_of(path) for path in ("/healthz/", "/metricsx", "//metrics")] == [REST] * 3


def test_one_address_serves_everything_where_no_other_is_configured() -> None:
    assert doors(HERE, {PROBES: None, REST: None}) == [Door(HERE, ALL)]
    assert doors(None, {PROBES: None}) == []


def test_pages_with_their_own_address_are_answered_only_there() -> None:
    assert doors(HERE, {PROBES: THERE, REST: MORE}) == [
        Door(HERE, frozenset({METRICS})),
        Door(THERE, frozenset({PROBES})),
        Door(MORE, frozenset({REST})),
    ]
    assert doors(None, {PROBES: THERE, REST: None}) == [Door(THERE, frozenset({PROBES}))]


def test_a_request_at_the_wrong_port_gets_a_hint() -> None:
    assert elsewhere("/healthz", {PROBES}) == ""
    assert (
        elsewhere("/metrics", {PROBES, REST})
        == "no /metrics on this port; it is served on another port of the pod"
    )
