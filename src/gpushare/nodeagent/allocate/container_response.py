"""What a container receives in addition to its GPU's name: the interface of isolation backends.

A node's mode selects the backend. ``NoIsolation`` passes the container its share and relies on it to stay within it.
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
    """What the container runtime is asked to add to one container."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Qualified CDI names, such as ``gpushare.dev/gpu=GPU-…``."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's share of each of its GPUs, as decided. ``pod_units`` are the units of its whole pod.

    Without a ``container`` it is the share of a ResourceClaim, common to all containers that use the claim. ``pod`` is then the
    claim's namespace and name, ``uid`` its UID.
    """

    pod: str
    uid: str
    container: str
    shares: tuple[GpuShare, ...]
    pod_units: int
    mode: NodeMode
    ids: tuple[str, ...] = ()
    """The device IDs that the kubelet assigned."""
    compute_class: str = ""
    """The kind of work that the pod declares, one of ``names.COMPUTE_CLASSES``; empty if it declares none."""
    compute_policy: CorePolicy | None = None
    """``None``: that of the node."""
    limit_mib: int = 0
    """How much the container may use of its one GPU while that is free; 0: its share."""


class Backend(Protocol):
    """Enforces a share in a container."""

    @property
    def in_place(self) -> bool:
        """Whether the GPU must be assigned by the CDI spec that has our libraries in place of the driver's."""

    @property
    def may_burst(self) -> bool:
        """Whether containers may use more than their share while the GPU has it free."""

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """What to add to ``memory_envs``; called once per container. Raises ``AllocationRefused``.

        ``in_place`` is the value of the property when the GPU was assigned.
        """


class NoIsolation:
    """No enforcement: the container reads its share from the environment (mode ``share``)."""

    in_place = False
    may_burst = False

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """Nothing to add."""
        return Injection()


def memory_envs(grant: Grant) -> dict[str, str]:
    """The environment variables with the container's GPU memory (spec §1), and our own in MiB.

    Several GPUs are listed with commas, always in the same order; units and MiB are per GPU. If the GPUs differ in size, those of
    the GPU of which the container has the smallest part count, so that a program that keeps to them takes too much of none.
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
    """The environment variables with the container's compute share."""
    return {names.ENV_CORE_PERCENT: str(grant.shares[0].core_percent)}
