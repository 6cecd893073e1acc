"""What can go wrong on a node, under one root."""

from gpushare.api.errors import Fault


class NodeAgentError(Fault):
    """The root. ``subject`` names what is at fault, ``problem`` says what is wrong and what to do."""


class InvalidSetting(NodeAgentError):
    """A command line option that cannot be used."""


class DriverMissing(NodeAgentError):
    """There is no NVML that could be loaded."""


class NvmlFailed(NodeAgentError):
    """NVML refused a call; ``code`` is its return value (nvml.h, ``nvmlReturn_t``)."""

    def __init__(self, subject: str, problem: str, code: int) -> None:
        super().__init__(subject, problem)
        self.code = code


class UnknownDeviceId(NodeAgentError):
    """A device ID that names no GPU of this node."""


class AllocationRefused(NodeAgentError):
    """No container can be meant by the IDs that the kubelet gave, or a ResourceClaim cannot be prepared.

    ``pods`` are the UIDs of those that the refusal is news for.
    """

    def __init__(self, subject: str, problem: str, pods: tuple[str, ...] = ()) -> None:
        super().__init__(subject, problem)
        self.pods = pods


class PodResourcesUnavailable(NodeAgentError):
    """The kubelet does not answer on its pod resources socket."""
