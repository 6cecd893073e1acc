"""Serves the pages: answers to their requests, and updates sent to all of them as the cluster changes."""

import asyncio
import logging
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec

from gpushare.api.request.describe import asks_text
from gpushare.dashboard.data import details, fragmentation
from gpushare.dashboard.data.agent_client import Agents
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.heatmap import UNKNOWN, State, in_parts
from gpushare.dashboard.data.history import History, Sample
from gpushare.dashboard.data.metrics_parser import Figures
from gpushare.dashboard.data.pending import MOST_SHOWN, Line, Source, Waiting
from gpushare.dashboard.server.app import Query, as_binary, as_json
from gpushare.dashboard.server.event_stream import Stream
from gpushare.httpserver.exchange import JSON, Refusal
from gpushare.kube.clock import Clock
from gpushare.reasons.categories import NOT_ROOM

logger = logging.getLogger(__name__)

#: Interval of updates; changes in between are sent together.
TICK_S: Final = 0.5
_FRESH_REPORT_S: Final = 5.0


class Live:
    """Answers requests of pages and sends them updates."""

    def __init__(
        self, cluster: Cluster, agents: Agents, source: Source, stream: Stream, history: History, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._agents = agents
        self._source = source
        self._stream = stream
        self._history = history
        self._clock = clock
        self._totals: Sample | None = None
        self._line = Line()
        self._report: tuple[float, fragmentation.Report] | None = None
        self._reporting = asyncio.Lock()
        self.shown = asyncio.Event()
        """Set once the whole cluster is on the board."""

    # --- updates --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send updates until cancelled."""
        while True:
            await self.tick()
            await self._clock.sleep(TICK_S)

    async def tick(self) -> None:
        """Send the changes since the last call."""
        await self._cluster.refresh()
        self.shown.set()
        now_s = self._clock.monotonic()
        totals = self._sample()
        delta = self._cluster.board.delta()
        before = self._totals
        totals_changed = before is None or msgspec.structs.replace(totals, at_s=before.at_s) != before
        if delta or totals_changed:
            self._totals = totals
            for part in in_parts(delta):
                message = {**part, "totals": totals} if totals_changed and "more" not in part else part
                self._stream.send("delta", msgspec.json.encode(message))
        if self._history.due(now_s):
            self._history.add(totals, now_s)
            self._stream.send("sample", msgspec.json.encode(totals))

    async def poll_pending(self) -> None:
        """Poll pending pods while a page is open, and send changes, until cancelled."""
        while True:
            if self._stream.pages:
                await self.send_pending()
            await self._clock.sleep(2 * TICK_S)

    async def send_pending(self) -> None:
        """Read pending pods once, and send them if they have changed."""
        line = self._with_claims(await self._source.line())
        if line != self._line:
            self._line = line
            self._stream.send("waiting", msgspec.json.encode(_summary(line)))

    def _sample(self) -> Sample:
        cluster = self._cluster
        board, totals = cluster.board, cluster.ledger.totals()
        used = board.plane("used_mib")
        known = used != UNKNOWN
        core = board.plane("allocated_core")
        counted = (board.plane("state") != State.ABSENT) & (core != UNKNOWN)
        return Sample(
            at_s=self._clock.time_ns() // 10**9,
            gpus=totals.gpus,
            total_mib=totals.total_mib,
            allocated_mib=totals.used_mib,
            used_mib=int(used[known].sum()) if known.any() else UNKNOWN,
            allocated_core=int(core[counted].sum()),
            pods=totals.pods,
            waiting=cluster.pending(),
            free_mib=fragmentation.free_mib(cluster),
            fragments_mib=cluster.ledger.fragments_mib(),
            reporting_gpus=int(known.sum()),
            reporting_mib=int(board.plane("total_mib")[known].sum()),
            core_gpus=int(counted.sum()),
        )

    # --- answers --------------------------------------------------------------------------------

    async def answer(self, path: str, query: Query) -> tuple[bytes, bytes]:
        """See ``app.Answers``."""
        if path == "waiting":
            line = await self._source.line()
            return as_json(
                self._with_claims(self._without_reasons(line) if line.problem else self._with_amounts(line))
            )
        if path == "decision":
            body, problem = await self._source.decision(query.parameter("pod"))
            if problem or not body:
                raise Refusal(502 if problem else 404, problem or "the scheduler has no record of that pod")
            return JSON, body
        if path == "snapshot":
            return as_binary(self.whole())
        self._require_shown()
        if path == "node":
            return await self._node(query.parameter("name"))
        if path == "pod":
            return await self._pod(query.parameter("key"))
        if path == "search":
            return as_json(details.found(self._cluster, query.parameter("q")[:200]))
        if path == "history":
            return as_json({"step_s": self._history.step_s, "samples": self._history.samples()})
        if path == "fragmentation":
            return as_json(await self._fragmentation())
        raise Refusal(404, f"nothing at /api/{path}")

    def _with_amounts(self, line: Line) -> Line:
        """``line`` with requests also in GiB or MiB: the scheduler reports units without their size."""
        unit_mib, records = self._cluster.unit_mib(), self._cluster.view.waiting
        if not unit_mib:
            return line
        pods = (
            pod
            if (record := records.get(pod.uid)) is None or record.request is None
            else msgspec.structs.replace(pod, asks=asks_text(record.request, unit_mib))
            for pod in line.pods
        )
        return msgspec.structs.replace(line, pods=tuple(pods))

    def _with_claims(self, line: Line) -> Line:
        """``line`` with the pods whose claims on GPUs are not allocated, which only kube-scheduler handles."""
        claims = self._cluster.claims
        pods = [
            Waiting(
                pod.pod,
                _created_s(pod.created),
                claims.asks_of(pod),
                "claim",
                pod.condition_message,
                uid=pod.uid,
            )
            for pod in claims.waiting()
        ]
        if not pods:
            return line
        merged = sorted([*line.pods, *pods], key=lambda pod: (pod.since, pod.key))
        return msgspec.structs.replace(
            line,
            pods=tuple(merged[:MOST_SHOWN]),
            count=line.count + len(pods),
            by_category=line.by_category | ({"claim": len(pods)} if line.by_category else {}),
        )

    def _without_reasons(self, line: Line) -> Line:
        """Pending pods from the API server, without reasons, which only the scheduler knows."""
        unit_mib = self._cluster.unit_mib()
        pods = sorted(
            (
                Waiting(
                    key=record.pod,
                    since=_created_s(record.created),
                    asks=asks_text(record.request, unit_mib),
                    category="",
                    reason=record.problem,
                    suggestion="",
                    uid=record.uid,
                )
                for record in self._cluster.waiting()
            ),
            key=lambda pod: (pod.since, pod.key),
        )
        return Line(tuple(pods[:MOST_SHOWN]), len(pods), line.problem)

    def _require_shown(self) -> None:
        if not self.shown.is_set():
            raise Refusal(503, "the cluster is not read yet; try again in a moment")

    def whole(self) -> bytes:
        """See ``app.Answers``."""
        self._require_shown()
        return self._cluster.board.snapshot(
            {
                "id": self._stream.last_id,
                "totals": self._sample(),
                "waiting": _summary(self._line),
            }
        )

    async def _node(self, name: str) -> tuple[bytes, bytes]:
        figures, usage_unknown = await self._figures(name)
        node = details.node_detail(self._cluster, name, figures, usage_unknown)
        if node is None:
            raise Refusal(404, f"no node {name} with GPUs is known")
        return as_json(node)

    async def _pod(self, key: str) -> tuple[bytes, bytes]:
        pod = details.pod_detail(self._cluster, key, None, "")
        if pod is not None and pod.node:
            pod = details.pod_detail(self._cluster, key, *await self._figures(pod.node))
        elif pod is not None and key not in self._cluster.claims.pods:
            pending, problem = await self._source.one(key)
            if pending is not None:
                pod = msgspec.structs.replace(pod, reason=pending.reason, suggestion=pending.suggestion)
            else:
                pod = msgspec.structs.replace(pod, reason_unknown=problem)
        if pod is None:
            raise Refusal(404, f"no pod {key} with a share of a GPU, or pending for one, is known")
        return as_json(pod)

    async def _figures(self, node: str) -> tuple[Figures | None, str]:
        """Figures of a node's agent. Only known nodes are contacted, whatever a page requests."""
        if node not in self._cluster.nodes:
            return None, "the node is not known"
        return await self._agents.read(node)

    async def _fragmentation(self) -> fragmentation.Report:
        async with self._reporting:
            now_s = self._clock.monotonic()
            if self._report is None or now_s - self._report[0] >= _FRESH_REPORT_S:
                line = await self._source.line()
                reasons = {pod.key: pod.reason for pod in line.pods if pod.category in NOT_ROOM}
                self._report = (now_s, await fragmentation.report(self._cluster, reasons))
            return self._report[1]


def _summary(line: Line) -> dict[str, Any]:
    """Counts of pending pods, and reserved capacity per GPU: node, index, MiB, percent of compute, and for whom."""
    reserved = [
        (share.node, share.gpu, share.mib, share.core_percent, reservation.whom)
        for reservation in line.kept
        for share in reservation.shares
    ]
    return {
        "count": line.count,
        "problem": line.problem,
        "by_category": line.by_category,
        "kept": reserved[:MOST_SHOWN],
    }


def _created_s(created: str) -> float:
    """Seconds since 1970 of a Kubernetes timestamp; 0 for an invalid one."""
    with suppress(ValueError):
        return datetime.fromisoformat(created).timestamp()
    return 0.0
