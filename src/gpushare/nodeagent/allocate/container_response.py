"""What a container gets besides its GPU's name: the place where isolation backends come in.

A node's mode chooses the backend. ``NoIsolation`` tells the container its share and trusts it to keep to it.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.isolation.options import CorePolicy


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container; ``permissions`` as cgroups write them (``rw``)."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Injection:
    """What the container runtime is asked to put into one container."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Qualified CDI names, such as ``gpushare.dev/gpu=GPU-…``."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's share of each of its GPUs, as decided. ``pod_units`` are the units of its whole pod.

    Without a ``container`` it is a ResourceClaim's share, one for all containers that use the claim: ``pod`` is then the claim's
    namespace and name, ``uid`` its UID.
    """

    pod: str
    uid: str
    container: str
    shares: tuple[GpuShare, ...]
    pod_units: int
    mode: NodeMode
    ids: tuple[str, ...] = ()
    """The device IDs that the kubelet gave."""
    compute_class: str = ""
    """What the pod says that its work is like, one of ``names.COMPUTE_CLASSES``; empty if it says nothing."""
    compute_policy: CorePolicy | None = None
    """``None``: that of the node."""


class Backend(Protocol):
    """Turns a share into what holds a container to it."""

    @property
    def in_place(self) -> bool:
        """Whether the GPU must be given by the description that has our libraries in place of the driver's."""

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """What to add beside ``memory_envs``; called once a container. Raises ``AllocationRefused``.

        ``in_place`` is what the property was when the GPU was given.
        """


class NoIsolation:
    """Nothing: the container reads its share from the environment (mode ``share``)."""

    in_place = False

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """Nothing to add."""
        return Injection()


def memory_envs(grant: Grant) -> dict[str, str]:
    """The environment that tells a container its GPU memory (spec §1), MiB of our own beside it.

    Several GPUs are listed with commas, in one order; units and MiB are those on one of them. Where they differ in size it
    is the one of which the container has the smallest part, so that no program that keeps to it takes too much of another.
    """
    shares = grant.shares
    least = min(shares, key=lambda share: Fraction(share.units, share.device_units))
    return {
        names.ENV_VISIBLE_DEVICES: ",".join(share.uuid for share in shares),
        names.ENV_MEM_INDEX: ",".join(str(share.index) for share in shares),
        names.ENV_MEM_POD: str(grant.pod_units),
        names.ENV_MEM_CONTAINER: str(least.units),
        names.ENV_MEM_DEVICE: str(least.device_units),
        names.ENV_MEM_LIMIT: str(min(share.mib for share in shares)),
    }


def core_envs(grant: Grant) -> dict[str, str]:
    """The environment that tells a container its compute share."""
    return {names.ENV_CORE_PERCENT: str(grant.shares[0].core_percent)}
