"""A playground for the pages of the documentation: started as a page requires, and reset after each."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from documentation.blocks import Block, Page, fill
from gpushare.api.quantity import MemoryUnit
from gpushare_playground import gpus
from gpushare_playground.cluster import DEFAULT_NODES, Cluster, NodeDescription
from tests.docs import samples
from tests.docs.typist import PROJECT, Typist
from tests.integration.whole.world import until

#: Namespaces that a playground begins with.
_OWN: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
#: Where scripts/install-system-packages puts third-party programs.
_UNPACKED: Final = (
    PROJECT / "build" / "system" / "usr" / "bin",
    PROJECT / "build" / "system" / "usr" / "lib" / "nvidia" / "current",
)
#: Isolation of a playground's agents when it begins.
_ISOLATION: Final = "auto"
#: Kinds that pages create; owners come first.
_KINDS: Final = "deployments,statefulsets,jobs,replicasets,pods,resourcequotas,poddisruptionbudgets,resourcepolicies,elasticquotatrees"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings of a page's mark ``playground``."""

    nodes: tuple[NodeDescription, ...] = DEFAULT_NODES
    unit: MemoryUnit = MemoryUnit.GIB
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables with which it is started."""


def wanted(page: Page) -> Wanted:
    nodes, unit = DEFAULT_NODES, MemoryUnit.GIB
    variables: list[tuple[str, str]] = []
    for word in page.playground:
        name, _, value = word.partition("=")
        if name == "nodes":
            nodes = tuple(_node(one) for one in value.split(","))
        elif name == "unit":
            unit = MemoryUnit.parse(value, page.name)
        elif name.startswith("GPUSHARE_"):
            variables.append((name, value))
        else:
            raise AssertionError(
                f"{page.name}: the mark 'playground' knows nodes, unit and variables, not {name}"
            )
    return Wanted(nodes, unit, tuple(variables))


def _node(text: str) -> NodeDescription:
    name, _, rest = text.partition("=")
    preset, _, mode = rest.partition(":")
    return NodeDescription(name, preset, (("ack.node.gpu.schedule", mode),) if mode else ())


@dataclass
class Playground:
    """A running playground, and the folder in which commands are typed."""

    cluster: Cluster
    folder: Path
    _typist: Typist = field(init=False)
    _labels: dict[str, dict[str, str]] = field(default_factory=dict)
    _isolation: str = _ISOLATION
    beside: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    """Commands in the background until the page has been typed."""

    async def begin(self) -> None:
        """Prepare: the checkout's examples and charts, kubectl on PATH, the nodes' current labels."""
        for name in ("examples", "charts", "src", "build"):
            (self.folder / name).symlink_to(PROJECT / name)
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), *map(str, _UNPACKED)]
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(PROJECT / "src"),
            "PLAYGROUND": str(self.cluster.state),
            "CHECKOUT": str(PROJECT),
            "NO_COLOR": "1",
        }
        self._typist = Typist(environment, self.folder)
        self._labels = await self._nodes("labels")

    async def follow(
        self, page: Page, block: Block, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """Type a block, with ``environment`` in addition to the playground's; returns a text per problem."""
        if block.agents:
            option, backend = block.agents.split()
            assert option == "--isolation", f"{page.name}:{block.line}: agents support only --isolation"
            self._isolation = backend
            await self.cluster.set_isolation(backend)
        more = dict(environment or {})
        if block.sample:
            more["KUBECTL"] = str(samples.kubectl(block.sample, self.folder))
        if block.beside:
            await self.beside.enter_async_context(self._typist.beside(fill(block.beside, block.words)))
        return await self._typist.follow(page, block, more=more)

    def save(self, block: Block) -> None:
        """Save a block as its file, as a reader does: with the values of words in capitals."""
        content = self._typist.substituted("\n".join(block.content), block.words)
        (self.folder / block.file).write_text(content + "\n")

    def lacks(self, needed: str) -> bool:
        """Whether a program that a block needs is not on PATH, or a folder that it names does not exist."""
        if "/" in needed:
            return not (PROJECT / needed).is_dir()
        return not shutil.which(needed, path=self._typist.environment["PATH"])

    async def tidy(self) -> None:
        """Delete everything that a page has created, and wait until it is gone."""
        await self.beside.aclose()
        spaces = json.loads(await self._output("kubectl get namespaces -o json"))["items"]
        made = [one["metadata"]["name"] for one in spaces if one["metadata"]["name"] not in _OWN]

        async def nothing_left() -> bool:
            # A controller whose watch has not shown its owner's deletion yet may recreate a pod between the two lists.
            for space in ("default", "kube-system", *made):
                await self._output(
                    f"kubectl -n {space} delete {_KINDS} --all --now --ignore-not-found --wait=true"
                )
            return not json.loads(await self._output("kubectl get replicasets,pods -A -o json"))["items"]

        await until(nothing_left, "what the page has made is gone")
        if made:
            await self._output(f"kubectl delete namespace {shlex.join(made)} --now")
        classes = json.loads(await self._output("kubectl get priorityclasses -o json"))["items"]
        for name in (one["metadata"]["name"] for one in classes):
            if not name.startswith("system-"):
                await self._output(f"kubectl delete priorityclass {name}")
        if self._isolation != _ISOLATION:
            self._isolation = _ISOLATION
            await self.cluster.set_isolation(_ISOLATION)
        await self._restore_nodes()
        for node in self.cluster.nodes:
            gpus.write(self.cluster.gpu_file(node.name), gpus.preset(node.preset, node.name))

    async def _restore_nodes(self) -> None:
        now, notes = await self._nodes("labels"), await self._nodes("annotations")
        for node, labels in self._labels.items():
            changes = [f"{key}={value}" for key, value in labels.items() if now[node].get(key) != value]
            changes += [
                f"{key}-"
                for key in now[node]
                if key not in labels and not key.startswith("gpushare.dev/described")
            ]
            if changes:
                await self._output(f"kubectl label node {node} --overwrite {shlex.join(changes)}")
            if "gpushare.dev/cordoned-gpus" in notes[node]:
                await self._output(f"kubectl annotate node {node} gpushare.dev/cordoned-gpus-")
            await self._output(f"kubectl uncordon {node}")
            await self.cluster.node_ready(node)

    async def _nodes(self, what: str) -> dict[str, dict[str, str]]:
        listed: list[dict[str, Any]] = json.loads(await self._output("kubectl get nodes -o json"))["items"]
        return {one["metadata"]["name"]: one["metadata"].get(what, {}) for one in listed}

    async def _output(self, command: str) -> str:
        code, out = await self._typist.run(command)
        assert code == 0, f"{command}\n{out}"
        return out


@contextlib.asynccontextmanager
async def playground(want: Wanted, folder: Path) -> AsyncIterator[Playground]:
    """A playground as requested, removed without a trace at the end."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    # Its parts inherit the environment of the process that starts it.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in want.variables:
            patch.setenv(name, value)
        async with _started(want, folder) as made:
            yield made


@contextlib.asynccontextmanager
async def _started(want: Wanted, folder: Path) -> AsyncIterator[Playground]:
    async with Cluster(
        driver=PROJECT / "build" / "fakegpu",
        isolation=PROJECT / "build" / "isolation",
        nodes=want.nodes,
        unit=want.unit,
        report=lambda _: None,
    ) as cluster:
        made = Playground(cluster, folder)
        await made.begin()
        async with made.beside:
            yield made
