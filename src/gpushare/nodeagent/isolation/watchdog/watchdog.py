"""Compares what each process uses, as the driver reports it, with what its container was allocated.

It makes bypassing isolation pointless, and finds processes without any allocation. ``look`` runs in NVML's thread, everything
else in the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gpushare.api.node.device import NodeDevices
from gpushare.api.objects import ObjectReference
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import RECENTLY_RECORDED_S, Occurrence, Recorder
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.isolation.options import CorePolicy, Watch
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.processes import kill, owners
from gpushare.nodeagent.isolation.watchdog.violations import (
    FOREIGN_LEAST_MIB,
    Finding,
    Foreign,
    ForeignBook,
    GpuMemory,
    GpuProcess,
    Holder,
    Overuse,
    OveruseState,
    Seen,
    Use,
    by_limit,
    seen,
)
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_MEMORY: Final = "GPUMemoryExceeded"
REASON_COMPUTE: Final = "GPUComputeExceeded"
REASON_KILLED: Final = "GPUMemoryKilled"
REASON_FOREIGN: Final = "UnmanagedGPUUsage"
REASON_NO_FOREIGN: Final = "UnmanagedGPUUsageResolved"

_MOST_NAMED: Final = 5


def foreign_cause(uuid: str) -> str:
    """The cause by which ``UnmanagedGPUUsage`` events of different GPUs are distinguished, also after their indices have changed."""
    return f"GPU {uuid}"


class AsksNvml(Protocol):
    """What is needed of NVML."""

    def processes(self) -> Sequence[GpuProcess]:
        """The processes on the GPUs."""


class NodeEventRecorder(Protocol):
    """``NodeEvents.report``."""

    def __call__(
        self,
        reason: str,
        note: str,
        kind: str = "Warning",
        *,
        cause: str = "",
        occurrence: Occurrence = "began",
    ) -> None:
        """Record an event of the node; those of one ``cause`` are counted on one event."""


class Watchdog:
    """``on_change`` is called when ``foreign_mib`` changed for some GPU, ``on_used`` with the use in each
    sample, after it was judged, and when the sample began.

    ``claim_holder_of`` returns the share of a GPU that a process's container uses through a ResourceClaim; ``burst_mib`` how much more a
    container may use than its share; ``core_policy`` is that of the node.
    """

    def __init__(
        self,
        watch: Watch,
        book: NodeAllocations,
        *,
        claim_holder_of: Callable[[Owner, str], Holder | None] = lambda whose, gpu: None,
        burst_mib: Callable[[str, str, str], int] = lambda uid, container, gpu: 0,
        core_policy: CorePolicy = "hard",
        report_on_node: NodeEventRecorder,
        events: Recorder,
        metrics: Metrics,
        clock: Clock,
        on_change: Callable[[], None],
        on_used: Callable[[Sequence[Use], float], None] = lambda uses, began_s: None,
        end: Callable[[int, Owner, Path], str] = kill,
    ) -> None:
        self._watch = watch
        self._book = book
        self._claim_holder_of = claim_holder_of
        self._burst_mib = burst_mib
        self._report_on_node = report_on_node
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        self._on_used = on_used
        self._end = end
        self._overuse = Overuse(watch.grace_s, core_policy)
        self._foreign = ForeignBook()
        self._foreign_by: dict[str, tuple[tuple[object, ...], str]] = {}
        """By GPU, what uses the published memory: kinds, and text."""
        self._foreign_kinds: dict[str, tuple[object, ...]] = {}
        """By GPU, the kinds in the last sample."""
        self._last: _Sample | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._evaluating = False
        self._began_s = 0.0
        self._overused_s: dict[tuple[str, ...], float] = {}

    def start(self, overuse: Iterable[OveruseState] = ()) -> None:
        """The node's pods are known: evaluate samples from now on, beginning with the last.

        ``overuse`` is that of the previous agent.
        """
        self._evaluating = True
        self._began_s = self._clock.monotonic()
        self._overuse.restore(overuse, self._began_s)
        self._evaluate()

    def attend(self) -> None:
        """Call in the event loop that is to get the samples."""
        self._loop = asyncio.get_running_loop()

    def look(self, nvml: AsksNvml, used_mib: Mapping[str, int | None]) -> None:
        """Sample NVML and ``/proc``; called in NVML's thread. ``used_mib``: what is used of each GPU as a whole, sampled just before."""
        if self._watch.policy == "off" or self._loop is None:
            return
        began_s = self._clock.monotonic()
        processes = nvml.processes()
        process_owners = owners((process.pid for process in processes), self._watch.proc)
        try:
            self._loop.call_soon_threadsafe(self.take, _Sample(processes, process_owners, used_mib, began_s))
        except RuntimeError:
            logger.debug("the event loop has ended")

    def take(self, sample: "_Sample") -> None:
        """Take in a sample."""
        self._last = sample
        if self._evaluating:
            self._evaluate()

    def lose(self) -> None:
        """The driver stopped responding, so the use of its GPUs is unknown. Published unmanaged memory stays."""
        self._last = None
        self._metrics.last_sample.set(value=0.0)

    @property
    def overuse(self) -> tuple[OveruseState, ...]:
        """Which containers are, or were a moment ago, above their share."""
        return self._overuse.states()

    @property
    def is_sampling(self) -> bool:
        """Whether the processes on the GPUs that this agent allocates are known; never with ``policy`` off."""
        return self._evaluating and self._last is not None and self._book.node.mode.offers_gpus

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """The last sample of the GPUs that this agent allocates; empty before the node's pods are known."""
        if not self.is_sampling or self._last is None:
            return ()
        return tuple(self._last.processes)

    @property
    def owners(self) -> Mapping[int, Owner | None]:
        """Their owners, by PID; ``None`` for NVIDIA's servers."""
        return self._last.owners if self._last is not None else {}

    def foreign(self, gpu: str) -> tuple[int, str]:
        """MiB of the GPU that are not to be allocated, and what uses them, as text."""
        return self._foreign.published(gpu), self.foreign_by(gpu)

    def foreign_by(self, gpu: str) -> str:
        """What uses that memory, as text."""
        return self._foreign_by[gpu][1] if gpu in self._foreign_by else ""

    def _evaluate(self) -> None:
        if self._last is None:
            return
        node = self._book.node
        shares = node.mode.shares_memory or node.mode.claims
        sample = self._seen(node, self._last) if shares else Seen((), {})
        sampled_s = self._clock.time_ns() // 10**9 if shares else 0
        self._metrics.last_sample.set(value=float(sampled_s))
        if node.mode.isolated:
            for finding in self._overuse.judge(by_limit(sample.uses), self._clock.monotonic()):
                self._act(finding)
        self._on_used(sample.uses, self._last.began_s)
        self._note_foreign(node, sample.foreign)

    def _seen(self, node: NodeDevices, sample: "_Sample") -> Seen:
        held = self._book.held()
        gpus = {
            device.uuid: GpuMemory(
                sample.used_mib.get(device.uuid), sum(share.mib for share in held.get(device.uuid, ()))
            )
            for device in node.devices
        }
        return seen(sample.processes, sample.owners, self.holder_of, gpus, enforced=node.mode.isolated)

    def holder_of(self, whose: Owner, gpu: str) -> Holder | None:
        """The owner's allocation of that GPU; ``None``: none."""
        allocated = self._book.pod(whose.pod_uid) if whose.pod_uid else None
        if allocated is None:
            return self._claim_holder_of(whose, gpu)
        container = allocated.bound.containers.get(whose.container_id, "")
        share = self._book.share_of(allocated, gpu, container)
        if share is None:
            return None
        burst_mib = self._burst_mib(allocated.uid, container, gpu)
        return Holder(
            allocated.key, allocated.uid, container, gpu, share.mib, share.core_percent, burst_mib=burst_mib
        )

    def _act(self, finding: Finding) -> None:
        use, holder = finding.use, finding.use.holder
        device = next((device for device in self._book.node.devices if device.uuid == holder.gpu), None)
        gpu = f"GPU {holder.gpu if device is None else device.label}"
        subject = f"container {holder.container}" if holder.container else "the pod"
        if holder.claim:
            subject = f"ResourceClaim {holder.claim}"
        processes = f"process{'' if len(use.pids) == 1 else 'es'} {_some(map(str, use.pids))} on the node"
        self._metrics.exceeded.add(finding.what)
        if finding.what == "compute":
            self._report(
                use,
                REASON_COMPUTE,
                f"{subject} uses {use.sm_percent}% of {gpu} for {self._watch.grace_s:g} s and more, its share is "
                f"{holder.core_percent}% ({processes})",
            )
            return
        above = f"{subject} uses {use.mib} MiB of {gpu}, its share is {holder.most_mib} MiB ({processes})"
        if not finding.due:
            then = (
                f"; it will be killed if this continues for {self._watch.grace_s:g} s" if self._kills else ""
            )
            self._report(use, REASON_MEMORY, above + then)
        elif not self._kills:
            self._report(use, REASON_MEMORY, f"{above}, for {self._watch.grace_s:g} s and more")
        else:
            self._report(use, REASON_KILLED, f"{above}; {self.kill(use.pids)}", happens=True)

    @property
    def _kills(self) -> bool:
        return self._watch.policy == "kill"

    def kill(self, pids: Sequence[int]) -> str:
        """Kill processes of the last sample; the result, for people."""
        ended, failed = [], []
        for pid in pids:
            whose = self.owners.get(pid)
            reason = "its container is unknown" if whose is None else self._end(pid, whose, self._watch.proc)
            if reason:
                failed.append(f"{pid} ({reason})")
            else:
                ended.append(str(pid))
        self._metrics.killed.add(amount=len(ended))
        texts = [f"killed by the node agent: {', '.join(ended)}"] if ended else []
        texts += [f"could not be killed: {', '.join(failed)}"] if failed else []
        return "; ".join(texts)

    def _telling(self, key: tuple[str, ...]) -> Occurrence:
        """Whether overuse that is found now is new or continues, perhaps from before this agent started."""
        now_s, patience_s = self._clock.monotonic(), 2 * self._watch.grace_s + RECENTLY_RECORDED_S
        self._overused_s = {
            earlier: at_s for earlier, at_s in self._overused_s.items() if now_s - at_s < patience_s
        }
        continues = key in self._overused_s or now_s - self._began_s < RECENTLY_RECORDED_S
        self._overused_s[key] = now_s
        return "lasting" if continues else "began"

    def _report(self, use: Use, reason: str, note: str, *, happens: bool = False) -> None:
        """Record an event of the pod; of a ResourceClaim, of each pod that has processes on the GPU."""
        for holder in self._pods_of(use):
            self._report_on(holder, reason, note, happens=happens)

    def _pods_of(self, use: Use) -> Collection[Holder]:
        if not use.holder.claim:
            return (use.holder,)
        owners = filter(None, map(self.owners.get, use.pids))
        holders = (self.holder_of(owner, use.holder.gpu) for owner in owners)
        # The claim is judged, whichever of its containers it was.
        return {
            holder.uid: holder._replace(container="") for holder in holders if holder is not None
        }.values()

    def _report_on(self, holder: Holder, reason: str, note: str, *, happens: bool) -> None:
        namespace, _, name = holder.pod.partition("/")
        about_it = about(pod=holder.pod, uid=holder.uid)
        logger.warning("pod %s: %s: %s", holder.pod, reason, note, extra=about_it)
        # Overuse that was reported before the container was known continues under the pod.
        container = "" if (holder.uid, "", holder.gpu, reason) in self._overused_s else holder.container
        self._events.record(
            ObjectReference("Pod", name, namespace, holder.uid),
            kind="Warning",
            reason=reason,
            action="Watching",
            note=note,
            # Amounts and processes differ between samples: the holder does not.
            cause=f"{container} {holder.gpu}",
            occurrence="each" if happens else self._telling((holder.uid, container, holder.gpu, reason)),
        )

    def _note_foreign(self, node: NodeDevices, by_gpu: Mapping[str, Foreign]) -> None:
        changed = False
        for device in node.devices:
            foreign, before_mib = by_gpu.get(device.uuid, Foreign()), self._foreign.published(device.uuid)
            published_mib = self._foreign.take(device.uuid, foreign)
            described = self._describe(device.uuid, foreign, changed=published_mib != before_mib)
            changed = changed or described or published_mib != before_mib
            if published_mib > before_mib:
                self._report_on_node(
                    REASON_FOREIGN,
                    f"GPU {device.label} ({device.uuid}): {foreign.total_mib} MiB are used without an allocation by {self.foreign_by(device.uuid)}. "
                    f"{published_mib} MiB are not allocated to pods",
                    cause=foreign_cause(device.uuid),
                    occurrence="lasting" if before_mib else "began",
                )
            elif before_mib and not published_mib:
                self._report_on_node(
                    REASON_NO_FOREIGN,
                    f"GPU {device.label} ({device.uuid}): no memory is used without an allocation",
                    "Normal",
                    cause=foreign_cause(device.uuid),
                )
        if changed:
            self._on_change()

    def _describe(self, gpu: str, foreign: Foreign, *, changed: bool) -> bool:
        """Write down what uses the published memory, if it has changed; returns whether it did.

        Other processes of the same owner, or a moment's changes, are no reason to write the node again.
        """
        before, self._foreign_kinds[gpu] = self._foreign_kinds.get(gpu), foreign.kinds
        if not self._foreign.published(gpu):
            return self._foreign_by.pop(gpu, None) is not None
        known = self._foreign_by.get(gpu)
        lasting = known is None or known[0] != foreign.kinds == before
        if not foreign.total_mib or not (changed or lasting):
            return False
        self._foreign_by[gpu] = foreign.kinds, self._users(foreign)
        return known != self._foreign_by[gpu]

    def _users(self, foreign: Foreign) -> str:
        users = [_processes(pids, self._pod_of(whose)) for whose, pids in foreign.pids.items()]
        if foreign.ended_mib:
            users.append(_processes(foreign.ended_pids, "ended, but its memory was not freed"))
        users += [f"{holder} (above its share)" for holder in sorted(set(foreign.excess_by))]
        if foreign.unlisted_mib >= FOREIGN_LEAST_MIB:
            users.append(f"something that the driver does not list ({foreign.unlisted_mib} MiB)")
        return _some(users)

    def _pod_of(self, whose: Owner) -> str:
        if not whose.pod_uid:
            return "in no pod"
        allocated = self._book.pod(whose.pod_uid)
        return f"pod {allocated.key}" if allocated is not None else f"pod UID {whose.pod_uid}"


class _Sample(NamedTuple):
    """Processes on the GPUs, their owners by PID, what is used of each GPU (UUID) as a whole, in MiB, and when it began."""

    processes: Sequence[GpuProcess]
    owners: Mapping[int, Owner | None]
    used_mib: Mapping[str, int | None]
    began_s: float = 0.0


def _processes(pids: Sequence[int], what: str) -> str:
    return f"process{'' if len(pids) == 1 else 'es'} {_some(map(str, pids))} ({what})"


def _some(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = len(listed) - _MOST_NAMED
    return ", ".join(listed[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
