"""Reads pages of scheduler and node agents that need authorization, through the API server's proxy.

The API server's proxy strips the user's credentials. So a token is requested for a service account of the scheduler's chart, which may
read these pages and nothing else, and is sent in a separate header. Users with the right to create that token may read the pages.
"""

import json
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from gpushare.api import names
from gpushare.inspect.sources.kubectl_proxy import Proxied

if TYPE_CHECKING:
    from gpushare.inspect.errors import KubectlFailed

#: The API server issues no token for less time.
_TOKEN_LIFETIME_S: Final = 600


class Reader:
    """Reads with such a token; a context. ``namespace`` is the scheduler's. Entering raises ``KubectlMissing`` and ``KubectlFailed``."""

    def __init__(self, proxied: Proxied, namespace: str) -> None:
        self._proxied = proxied
        self._account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{names.READER_ACCOUNT}"
        self._headers: dict[str, str] = {}
        self._refused: KubectlFailed | None = None

    def __enter__(self) -> "Reader":
        self._proxied.__enter__()
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [names.READER_AUDIENCE], "expirationSeconds": _TOKEN_LIFETIME_S},
        }
        answer = self._proxied.create(f"{self._account}/token", json.dumps(request).encode())
        if isinstance(answer, bytes):
            self._headers = {names.READER_HEADER: json.loads(answer)["status"]["token"]}
        elif not answer.not_found:  # charts of earlier versions have no such account and need no token
            self._refused = answer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._proxied.end()

    def outcomes(self, paths: Sequence[str]) -> "list[bytes | KubectlFailed]":
        """The answer to each path, or the error."""
        if self._refused is not None:
            return [self._refused for _ in paths]
        return self._proxied.outcomes(paths, self._headers)
