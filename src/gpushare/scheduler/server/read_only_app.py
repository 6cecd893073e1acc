"""The scheduler's read-only HTTP paths: probes, metrics, and the pages of plugins."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gpushare.api import names
from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.exchange import JSON, Receive, Scope
from gpushare.httpserver.probes import Exposition, Probes

if TYPE_CHECKING:
    from gpushare.scheduler.framework.interface import Pages

#: Path prefix of the verbs, the extender's ``urlPrefix`` in kube-scheduler's configuration.
PREFIX: Final = "/gpushare"
_TOKEN: Final = names.READER_HEADER.lower().encode()


class ReadOnly(Probes):
    """Serves probes and metrics, and ``pages`` to clients that ``readers`` authorizes."""

    def __init__(
        self,
        missing: Callable[[], str],
        metrics: Exposition,
        pages: "Sequence[Pages]" = (),
        readers: Readers | None = None,
    ) -> None:
        super().__init__(missing, metrics)
        self._pages = pages
        self._readers = readers

    async def admit(self, scope: Scope) -> None:
        """Raise ``Refusal`` if the client requests a page that it may not read."""
        page = self._page_at(scope["path"])
        if page is not None:
            assert self._readers is not None, "there are pages without an authorizer"
            shown = (value for name, value in scope.get("headers", ()) if name == _TOKEN)
            await self._readers.check(next(shown, b"").decode("latin-1"), page.page_prefix)

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        """Content type and body of the response; raises ``Refusal`` for every status other than 200."""
        page = self._page_at(path) if method in ("GET", "HEAD") else None
        if page is None:
            return await super().answer(method, path, receive)
        self.refuse_unready()
        return JSON, await page.page(path)

    def _page_at(self, path: str) -> "Pages | None":
        return next((one for one in self._pages if path.startswith(one.page_prefix)), None)
