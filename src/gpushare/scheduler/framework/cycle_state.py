"""One filter or prioritize request of kube-scheduler, decoded: the pod, the nodes, and what the pod requests."""

from typing import Final, NamedTuple

from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.pod_group import Gang, gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.scheduler.server import protocol

#: Larger bodies are not cached.
_KEPT_BYTES: Final = 1024 * 1024


class CycleState(NamedTuple):
    """A decoded request body. ``problem``: why the pod's request is invalid, empty if it is valid."""

    args: protocol.ExtenderArgs
    names: list[str]
    request: Request | None
    problem: str
    gang: Gang | None = None

    @property
    def pod(self) -> Pod:
        """The pod that kube-scheduler sent."""
        return self.args.pod


class Bodies:
    """Decodes bodies of filter and prioritize requests, and caches the last one.

    If every node fits, kube-scheduler sends the identical bytes to prioritize again.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, CycleState] | None = None

    def read(self, body: bytes) -> CycleState:
        """Decode ``body``; raises ``WireError``. The result is shared, so callers must not change it."""
        if self._last is not None and self._last[0] == body:
            return self._last[1]
        args = protocol.read_args(body)
        names = args.names()
        try:
            request = request_of(args.pod)
            # A pod without a GPU is placed independently, even if it is in a gang.
            state = CycleState(args, names, request, "", None if request is None else gang_of(args.pod))
        except InvalidRequest as error:
            state = CycleState(args, names, None, error.problem)
        self._last = (body, state) if len(body) <= _KEPT_BYTES else None
        return state
