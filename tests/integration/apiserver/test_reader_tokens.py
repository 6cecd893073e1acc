"""Tokens for readers on the playground's API server: as on the real one (``tests/e2e/test_reader_tokens.py``)."""

import aiohttp
import pytest

from gpushare.kube.auth.access import load_access
from gpushare.kube.auth.token_reviews import token_of
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import Session
from gpushare_playground.apiserver.server import ApiServer
from tests.integration.apiserver.conftest import Api
from tests.reader_tokens import ACCOUNT, check_tokens_to_read_with


async def test_a_token_is_accepted_only_for_its_audience(server: ApiServer, api: Api) -> None:
    await api("POST", "/api/v1/namespaces/kube-system/serviceaccounts", ACCOUNT)
    admin = load_access(str(server.kubeconfig_path))
    await check_tokens_to_read_with(admin, admin)


async def test_no_token_for_a_missing_account_or_for_the_api_servers_audience(
    server: ApiServer, api: Api
) -> None:
    async with Session(load_access(str(server.kubeconfig_path))) as session:
        with pytest.raises(ApiError) as raised:
            await token_of(session, "kube-system", "gpushare-reader", "gpushare.dev", seconds=600)
        assert raised.value.not_found
        await api("POST", "/api/v1/namespaces/kube-system/serviceaccounts", ACCOUNT)
        token = await token_of(session, "kube-system", "gpushare-reader", "gpushare.dev", seconds=600)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{server.url}/api/v1/pods", ssl=False) as answer,
    ):
        assert answer.status == 401
