"""Pages of scheduler and node agents that are not for everybody, read through the API server's proxy.

They ask who reads. The API server's proxy does not say: it takes credentials off. So a token is made for the purpose, of an account of the
scheduler's chart that may read these pages and nothing else, and shown beside each question. Whoever may have one made may read.
"""

import json
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from gpushare.api import names
from gpushare.inspect.sources.kubectl_proxy import Proxied

if TYPE_CHECKING:
    from gpushare.inspect.errors import KubectlFailed

#: The API server makes none for less.
_TOKEN_S: Final = 600


class Reader:
    """Asks with such a token; a context. ``namespace`` is the scheduler's. Entering raises ``KubectlMissing`` and ``KubectlFailed``."""

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
            "spec": {"audiences": [names.READER_AUDIENCE], "expirationSeconds": _TOKEN_S},
        }
        made = self._proxied.create(f"{self._account}/token", json.dumps(request).encode())
        if isinstance(made, bytes):
            self._headers = {names.READER_HEADER: json.loads(made)["status"]["token"]}
        elif not made.not_found:  # a chart of an earlier version has no such account, and asks for no token
            self._refused = made
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._proxied.end()

    def outcomes(self, paths: Sequence[str]) -> "list[bytes | KubectlFailed]":
        """The answer to each path, or why there is none."""
        if self._refused is not None:
            return [self._refused for _ in paths]
        return self._proxied.outcomes(paths, self._headers)
