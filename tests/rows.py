"""Large tables of cases, checked in one test: a test for each row would cost more than the check itself."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

#: Number of rows whose failures are shown completely; all others are only named.
_SHOWN = 10


def every_row(rows: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one test of a check whose last parameter is a row, which has an ``id``: all rows are checked even if some fail."""

    def decorated(check: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(check):

            @functools.wraps(check)
            async def test(**others: Any) -> None:
                with _collected(rows) as each:
                    for row in rows:
                        with each(row):
                            await check(**others, **{last: row})
        else:

            @functools.wraps(check)
            def test(**others: Any) -> None:
                with _collected(rows) as each:
                    for row in rows:
                        with each(row):
                            check(**others, **{last: row})

        signature = inspect.signature(check)
        *_, last = signature.parameters
        left = [one for name, one in signature.parameters.items() if name != last]
        test.__signature__ = signature.replace(parameters=left)  # what pytest has to fill in
        return test

    return decorated


@contextmanager
def _collected(rows: Sequence[Any]) -> Iterator[Callable[[Any], AbstractContextManager[None]]]:
    names = [row.id for row in rows]
    assert names, "there are no rows"
    assert len(names) == len(set(names)), "two rows have the same name"
    failed: dict[str, BaseException] = {}

    @contextmanager
    def each(row: Any) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"row {row.id}")
            failed[row.id] = error

    yield each
    if failed:
        message = f"{len(failed)} of {len(rows)} rows: {', '.join(failed)}"
        raise BaseExceptionGroup(message, [*failed.values()][:_SHOWN])
