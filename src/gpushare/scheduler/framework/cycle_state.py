"""What is known of one question of kube-scheduler: the pod, the nodes, and what the pod requests."""

from typing import Final, NamedTuple

from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.pod_group import Gang, gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.scheduler.server import protocol

#: Larger bodies are read and forgotten.
_KEPT_BYTES: Final = 1024 * 1024


class CycleState(NamedTuple):
    """What a body says. ``problem``: why its pod can be placed nowhere, empty where it can."""

    args: protocol.ExtenderArgs
    names: list[str]
    request: Request | None
    problem: str
    gang: Gang | None = None

    @property
    def pod(self) -> Pod:
        """The pod as kube-scheduler sent it."""
        return self.args.pod


class Bodies:
    """Reads bodies of filter and prioritize, and remembers the last.

    Where every node fits, kube-scheduler sends the same once more to prioritize, byte by byte.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, CycleState] | None = None

    def read(self, body: bytes) -> CycleState:
        """What ``body`` says, which nobody may change; raises ``WireError``."""
        if self._last is not None and self._last[0] == body:
            return self._last[1]
        args = protocol.read_args(body)
        names = args.names()
        try:
            request = request_of(args.pod)
            # Pods without a GPU go their own way, whatever they say of a gang.
            state = CycleState(args, names, request, "", None if request is None else gang_of(args.pod))
        except InvalidRequest as error:
            state = CycleState(args, names, None, error.problem)
        self._last = (body, state) if len(body) <= _KEPT_BYTES else None
        return state
