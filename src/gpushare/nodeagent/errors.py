"""Errors of the node agent."""

from gpushare.api.errors import Fault


class NodeAgentError(Fault):
    """The base class. ``subject`` names the faulty object, ``problem`` says what is wrong and what to do."""


class InvalidSetting(NodeAgentError):
    """A command line option that cannot be used."""


class DriverMissing(NodeAgentError):
    """No NVML library could be loaded."""


class NvmlFailed(NodeAgentError):
    """A call of NVML failed; ``code`` is its return value (nvml.h, ``nvmlReturn_t``)."""

    def __init__(self, subject: str, problem: str, code: int) -> None:
        super().__init__(subject, problem)
        self.code = code


class UnknownDeviceId(NodeAgentError):
    """A device ID of no GPU of this node."""


class AllocationRefused(NodeAgentError):
    """A call of the kubelet that matches no container, or a ResourceClaim that cannot be prepared.

    ``pods`` are the UIDs of the pods to report it to.
    """

    def __init__(self, subject: str, problem: str, pods: tuple[str, ...] = ()) -> None:
        super().__init__(subject, problem)
        self.pods = pods


class PodResourcesUnavailable(NodeAgentError):
    """The kubelet does not respond on its pod resources socket."""
