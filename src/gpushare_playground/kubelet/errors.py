"""Errors of the playground's kubelet."""

from gpushare.api.errors import Fault


class KubeletError(Fault):
    """The base class. ``subject`` names what is at fault, ``problem`` states what is wrong and what to do."""


class BadSettings(KubeletError):
    """An option or folder with which the kubelet cannot start."""


class Rejected(KubeletError):
    """A pod that is not admitted: its phase becomes Failed with ``reason`` and ``problem``."""

    def __init__(self, pod: str, reason: str, problem: str) -> None:
        super().__init__(pod, problem)
        self.reason = reason


class DeviceUnavailable(KubeletError):
    """Devices that cannot be allocated to a container; ``problem`` has the kubelet's wording."""


class StartFailed(KubeletError):
    """A container that did not start. ``reason`` is shown as its state: RunContainerError, StartError …"""

    def __init__(self, container: str, reason: str, problem: str) -> None:
        super().__init__(container, problem)
        self.reason = reason


class NotRunning(KubeletError):
    """A request about a pod or container that does not exist here or does not run."""


class Waiting(NotRunning):
    """A request about a container that has not started yet: one sentence, as the kubelet's."""

    def __str__(self) -> str:
        return f"{self.subject} {self.problem}"
