"""Calls of the kubelet whose work must not stop halfway."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def to_completion(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which continues if the kubelet hangs up or its deadline passes.

    gRPC cancels the handler then, but not a thread that is writing the container's files. Were the work cancelled too, the
    kubelet's next call would run beside that thread, whose files nobody would know.
    """
    return await asyncio.shield(asyncio.create_task(work))
