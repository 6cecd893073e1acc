"""One playground for the tests that make no lasting changes to it."""

from collections.abc import Iterator

import pytest

from tests.integration.playground.running_playground import Playground


@pytest.fixture(scope="package")
def playground() -> Iterator[Playground]:
    started = Playground()
    yield started
    assert started.end() == 0
    assert started.processes() == []
    assert not started.state.exists()
