"""Listing a collection page by page."""

from collections.abc import AsyncGenerator, Mapping

import msgspec

from gpushare.kube.client.errors import MalformedAnswer
from gpushare.kube.client.session import Session

PAGE_SIZE = 500


class _Meta(msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    resource_version: str = ""
    continue_: str = ""


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


_decode = msgspec.json.Decoder(_List).decode


class Page(msgspec.Struct, frozen=True):
    """Items as received JSON, and the resource version of the whole list."""

    items: list[msgspec.Raw]
    resource_version: str


async def list_pages(
    session: Session,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    page_size: int = PAGE_SIZE,
    timeout_s: float = 60.0,
) -> AsyncGenerator[Page, None]:
    """The pages of one consistent list; at least one.

    Items stay JSON, so that the objects of a whole page are never in memory at once. Raises what ``Session.request`` raises
    (``ApiError.gone`` if the continue token has expired: list again) and ``MalformedAnswer``.
    """
    query = {**(params or {}), "limit": str(page_size)}
    while True:
        answer = await session.request("GET", path, params=query, timeout_s=timeout_s)
        try:
            page = _decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedAnswer(path, f"the answer is no list ({error})") from error
        yield Page(page.items or [], page.metadata.resource_version)
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_
