"""A device plugin that is lost while a pod's admission needs it."""

import asyncio

import pytest

from tests.integration.kubelet.scripted_plugin import ScriptedPlugin
from tests.integration.kubelet.small_cluster import RESOURCE, limits, until, waiting


class Hanging(ScriptedPlugin):
    """Stops answering once ``hangs`` names the call, and then ends its device list on request."""

    hangs = ""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked = asyncio.Event()
        self.end_list = asyncio.Event()

    async def _hang(self, call):
        if self.hangs == call:
            self.asked.set()
            await asyncio.Event().wait()

    async def ListAndWatch(self, request, context):  # noqa: N802
        async for listed in super().ListAndWatch(request, context):
            yield listed
            await self.end_list.wait()
            return

    async def GetPreferredAllocation(self, request, context):  # noqa: N802
        await self._hang("GetPreferredAllocation")
        return await super().GetPreferredAllocation(request, context)

    async def Allocate(self, request, context):  # noqa: N802
        await self._hang("Allocate")
        return await super().Allocate(request, context)


@pytest.mark.parametrize("call", ["GetPreferredAllocation", "Allocate"])
async def test_a_pod_in_admission_fails_with_a_reason_when_its_plugin_is_lost(cluster, call):
    plugin = Hanging(cluster.folders)
    plugin.hangs = call
    await plugin.serve()
    try:
        await plugin.register()
        await cluster.amounts_are(("8", "8"))
        await cluster.create("p", waiting(**limits(2)))
        await until(plugin.asked.is_set, "the plugin is asked")
        plugin.end_list.set()
        pod = await cluster.pod_where("p", lambda pod: pod["status"]["phase"] == "Failed", "has failed")
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert "code = Canceled desc = grpc: the client connection is closing" in pod["status"]["message"]
    finally:
        await plugin.die()


async def test_a_kubelet_started_before_its_plugin_refuses_a_pod_that_needs_devices(cluster, plugin):
    await cluster.amounts_are(("8", "8"))
    await cluster.stop_kubelet()
    await plugin.die()
    await cluster.create("p", waiting(**limits(2)))
    await cluster.start_kubelet()
    pod = await cluster.pod_where("p", lambda pod: pod["status"]["phase"] != "Pending", "is decided")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert "no healthy devices present" in pod["status"]["message"]


async def test_a_deleted_pod_that_never_started_holds_no_devices_once_its_object_is_gone(
    cluster, plugin, monkeypatch
):
    await cluster.create("p", waiting(**limits(2), envFrom=[{"configMapRef": {"name": "none"}}]))
    await until(lambda: cluster.kubelet.book.taken(RESOURCE) == 2, "it has its devices")
    holding = []
    send = cluster.kubelet.session.request

    async def request(method, path, **options):
        if method == "DELETE" and b'"gracePeriodSeconds": 0' in (options.get("body") or b""):
            holding.append([pod.key for pod in cluster.kubelet._active_pods()])
        return await send(method, path, **options)

    monkeypatch.setattr(cluster.kubelet.session, "request", request)
    await cluster.delete("p")
    await until(lambda: holding, "the kubelet takes the object away")
    assert holding[0] == []
