"""One node: a scripted API server, a scripted kubelet, scripted GPUs, and the real node agent between them."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.modes import MODES
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import Access
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.nodeagent.agent import Agent
from gpushare.nodeagent.deviceplugin import handover, registration
from gpushare.nodeagent.isolation.options import IsolationOptions
from gpushare.nodeagent.modes.rules import rules_of
from gpushare.nodeagent.settings import Pace, Settings
from tests.integration.nodeagent import cluster_objects as objects
from tests.integration.nodeagent.changing import Changes
from tests.integration.nodeagent.scripted_api import ScriptedApi
from tests.integration.nodeagent.scripted_kubelet import Admitted, ScriptedKubelet
from tests.integration.nodeagent.scripted_nvml import ScriptedNvml, gpu

QUICK = Pace(
    wait_s=0.02,
    probe_s=0.02,
    reopen_s=0.1,
    look_first_s=0.02,
    look_most_s=0.1,
    cdi_s=0.05,
    isolation_s=0.05,
    keep_s=0.1,
    sweep_s=0.05,
    watch_s=0.02,
)


@dataclass
class World:
    folder: Path
    changes: Changes
    api: ScriptedApi
    kubelet: ScriptedKubelet
    nvml: ScriptedNvml
    settings: Settings
    clock: Clock = SYSTEM_CLOCK
    _agent: Agent | None = None
    _running: asyncio.Task[None] | None = None
    _session: Session | None = field(default=None, repr=False)

    @property
    def agent(self) -> Agent:
        """The agent that was started last."""
        assert self._agent is not None
        return self._agent

    async def start(self, *, mode: str | None = "share", ready: bool = True) -> None:
        """Start the agent on a node with that label; with ``ready`` wait until it is ready."""
        if ("nodes", objects.NODE) not in self.api.objects:
            self.api.put("nodes", objects.NODE, objects.node(mode))
        self._session = await Session(Access(self.api.url)).__aenter__()
        self._agent = Agent(self.settings, self._session, self.nvml, clock=self.clock)
        self._running = asyncio.create_task(self._agent.run())
        self._running.add_done_callback(lambda _: self.changes.notify())
        if ready:
            await self.ready()

    async def ready(self) -> None:
        """Wait until the kubelet has the list of every resource of the node's mode, the agent knows it, and
        the node is described.

        The kubelet requests the list while it still answers the agent's registration, and the agent writes
        to the API server concurrently.
        """
        label = self.api.objects["nodes", objects.NODE]["metadata"]["labels"][names.LABEL_MODE]
        wanted = [one.name for one in rules_of(MODES[label]).plugins]
        agent = self.agent

        def served() -> bool:
            return (
                all(self.kubelet.is_served(one) for one in wanted)
                and not any("not registered" in one for one in agent.missing())
                and names.ANN_DEVICES in self.api.annotations("nodes", self.settings.node)
            )

        await self.changes.until(lambda: self._died() or served(), "the agent is ready")

    def _died(self) -> bool:
        assert self._running is not None
        return self._running.done() and self._running.result() is None

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
            self._running = None
        if self._session is not None:
            await self._session.__aexit__(None, None, None)
            self._session = None
        # Noticed later, the end of these lists would take the next agent's resources from it, as with the
        # real one; that agent registers again, but only after it was ready once.
        await self.changes.until(self.kubelet.is_alone, "the kubelet has noticed the agent's end")

    def use(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    def bind(
        self,
        name: str,
        *containers: dict[str, Any],
        on: int | Sequence[int] | None,
        init: tuple[dict[str, Any], ...] = (),
        labels: dict[str, str] | None = None,
        **how: Any,
    ) -> dict[str, Any]:
        """A pod bound to our node by the scheduler, with an allocation of GPU ``on`` or several (``None``:
        without one).
        """
        made = objects.pod(name, *containers, init=init, labels=labels)
        if on is not None:
            self.decide(made, on, **how)
        self.api.put_pod(made)
        return made

    def decide(self, made: dict[str, Any], on: int | Sequence[int], **how: Any) -> None:
        """Write an allocation of GPU ``on``, or several, on the pod."""
        objects.decide(made, self.nvml.gpus, on, unit=self.settings.unit, **how)

    async def run_pod(self, name: str, units: int, on: int, core: int = 0) -> Admitted:
        """A pod with one container, bound and admitted."""
        return await self.kubelet.admit(self.bind(name, objects.container("c", units, core), on=on))

    def recorded(self, name: str) -> Allocation:
        """The pod's record as it is now."""
        found = read_allocation(self.api.annotations("pods", f"default/{name}"), None)
        assert found is not None
        return found

    def assigned(self, name: str) -> bool:
        annotations = self.api.annotations("pods", f"default/{name}")
        marks = {
            annotations.get(mark)
            for mark, record in (
                (names.ANN_MEM_ASSIGNED, names.ANN_MEM_INDEX),
                (names.ANN_ASSIGNED, names.ANN_ALLOCATION),
            )
            if record in annotations
        }
        return marks == {"true"}

    async def until_assigned(self, *pods: str) -> None:
        await self.changes.until(lambda: all(self.assigned(one) for one in pods), f"assigned: {pods}")

    def end_pod(self, name: str) -> None:
        """The pod has finished and is deleted."""
        self.kubelet.remove(f"default/{name}")
        self.api.drop("pods", f"default/{name}")


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten intervals that are no setting: nothing here is about their length."""
    monkeypatch.setattr(registration, "_LOOK_S", 0.02)
    monkeypatch.setattr(registration, "_RETRY_FIRST_S", 0.05)
    monkeypatch.setattr(handover, "_LOOK_S", 0.02)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short paths (the kernel allows 107 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="gsn"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def world(short_folder: Path) -> AsyncIterator[World]:
    """Two T4 with 15 units each; the agent is started by the test."""
    changes = Changes()
    api, kubelet = ScriptedApi(changes), ScriptedKubelet(short_folder, changes)
    await api.start()
    await kubelet.start()
    settings = Settings(
        node=objects.NODE,
        kubelet_dir=kubelet.plugins_dir,
        pod_resources=kubelet.resources_socket,
        plugins_registry=kubelet.plugins_dir.parent / "plugins_registry",
        unit=MemoryUnit.GIB,
        pace=QUICK,
        xid_recovery_s=0.05,
        cdi_folders=(short_folder / "cdi-static", short_folder / "cdi"),
        isolation=IsolationOptions(
            folder=short_folder / "gpushare" / "containers", library_folder=short_folder / "image"
        ),
    )
    made = World(short_folder, changes, api, kubelet, ScriptedNvml([gpu(0), gpu(1)]), settings)
    yield made
    await made.stop()
    await kubelet.stop()
    await api.stop()
