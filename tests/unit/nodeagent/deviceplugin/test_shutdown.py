"""How an agent distinguishes an uninstallation from its own end."""

import pytest

from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.nodeagent.deviceplugin.shutdown import PERMISSIONS_S, permissions_are_gone


class Time:
    """Advances when something sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Server:
    """Answers with each of ``answers``, then always with the last one; ``None`` is a list."""

    def __init__(self, *answers: Exception | None) -> None:
        self.grants = list(answers)
        self.requests = 0

    async def ask(self) -> None:
        self.requests += 1
        answer = self.grants.pop(0) if len(self.grants) > 1 else self.grants[0]
        if answer is not None:
            raise answer


@pytest.mark.parametrize("status", [401, 403])
async def test_rights_that_disappear_during_shutdown_mean_an_uninstallation(status: int) -> None:
    time = Time()
    refused = ApiError(status, "", "no", "/api/v1/pods")
    assert await permissions_are_gone(Server(None, None, refused).ask, time)
    assert time.now_s < PERMISSIONS_S


async def test_rights_that_stay_mean_no_uninstallation(monkeypatch: pytest.MonkeyPatch) -> None:
    time, server = Time(), Server(None)
    assert not await permissions_are_gone(server.ask, time)
    assert time.now_s == pytest.approx(PERMISSIONS_S, abs=PERMISSIONS_S / 5)
    assert server.requests == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    "failure", [ApiError(503, "", "away", "/api/v1/pods"), Unreachable("https://x", "refused", sent=False)]
)
async def test_an_unreachable_api_server_means_nothing(failure: Exception) -> None:
    assert not await permissions_are_gone(Server(failure).ask, Time())
