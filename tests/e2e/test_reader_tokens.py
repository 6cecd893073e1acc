"""Who may read decisions and usage, on a real API server with the charts' own accounts and roles."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.api import names
from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.auth.token_reviews import AccessReviews, token_of
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import Session
from tests.e2e.asking import Commands
from tests.e2e.charts.accounts import kubeconfig_of
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import CHECKOUT, control_plane
from tests.reader_tokens import DECISIONS, USAGE, check_tokens_to_read_with

CHARTS = {
    "ack-co-scheduler": ("--set", "dashboard.enabled=true,dashboard.tokenSecret=s"),
    "ack-ai-installer": (),
}
NEEDED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
NAMESPACE = "kube-system"
#: What the accounts may do, each by another role.
RIGHTS = {
    "ack-co-scheduler": ("create", "tokenreviews.authentication.k8s.io"),
    "gpushare-device-plugin": ("create", "tokenreviews.authentication.k8s.io"),
    "gpushare-dashboard": ("create", f"serviceaccounts/{names.READER_ACCOUNT}", "--subresource=token"),
    names.READER_ACCOUNT: ("get", DECISIONS),
}

AccessFn = Callable[[str], Access]


@pytest.fixture(scope="module")
def account(binaries: Path, states: Path) -> Iterator[AccessFn]:
    """Access for an account of the charts to an API server that has them; the empty name is the administrator."""
    with control_plane(binaries, states / "readers") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        for chart, more in CHARTS.items():
            rendered = commands.typed(
                *("helm", "template", "co", str(CHECKOUT / "charts" / chart), "-n", NAMESPACE, *more),
            )
            docs = [doc for doc in yaml.safe_load_all(rendered) if doc and doc["kind"] in NEEDED]
            commands.apply(*docs)
        for name, right in RIGHTS.items():
            user = f"--as=system:serviceaccount:{NAMESPACE}:{name}"
            may = ("kubectl", "auth", "can-i", *right, user, "-n", NAMESPACE)
            wait_for(f"the role of {name} is known", lambda may=may: commands.run(*may).returncode == 0)

        def access(name: str) -> Access:
            path = kubeconfig
            if name:
                path = kubeconfig_of(commands, name, NAMESPACE, states / f"{name}.kubeconfig")
            return load_access(str(path))

        yield access


@pytest.mark.parametrize("reviewing", ["ack-co-scheduler", "gpushare-device-plugin"])
def test_extender_and_agents_identify_a_tokens_account(account: AccessFn, reviewing: str) -> None:
    asyncio.run(check_tokens_to_read_with(account(""), account(reviewing)))


def test_the_dashboard_may_create_tokens_of_that_account_alone(account: AccessFn) -> None:
    async def tried() -> None:
        async with Session(account("gpushare-dashboard")) as session:
            for name in (names.READER_ACCOUNT, "ack-co-scheduler"):
                made = token_of(session, NAMESPACE, name, names.READER_AUDIENCE, seconds=600)
                if name == names.READER_ACCOUNT:
                    assert await made
                    continue
                with pytest.raises(ApiError) as raised:
                    await made
                assert raised.value.status == 403

    asyncio.run(tried())


def test_the_account_may_read_these_pages_and_nothing_of_the_api_server(account: AccessFn) -> None:
    async def tried() -> None:
        async with Session(account("ack-co-scheduler")) as reviewer, Session(account("")) as admin:
            reviews = AccessReviews(reviewer)
            token = await token_of(admin, NAMESPACE, names.READER_ACCOUNT, names.READER_AUDIENCE, seconds=600)
            caller = await reviews.caller_of(token, names.READER_AUDIENCE)
            assert caller is not None
            assert [await reviews.may_get(caller, path) for path in (DECISIONS, USAGE)] == [True, True]
            for path in ("/metrics", "/gpushare", "/gpushare/filter", "/logs"):
                assert not await reviews.may_get(caller, path), path
            # A token of another account for our audience authenticates, and does not authorize.
            token = await token_of(admin, "default", "default", names.READER_AUDIENCE, seconds=600)
            caller = await reviews.caller_of(token, names.READER_AUDIENCE)
            assert caller is not None
            assert not await reviews.may_get(caller, DECISIONS)
        async with Session(account(names.READER_ACCOUNT)) as session:
            with pytest.raises(ApiError) as raised:
                await session.request("GET", "/api/v1/pods")
            assert raised.value.status == 403

    asyncio.run(tried())
