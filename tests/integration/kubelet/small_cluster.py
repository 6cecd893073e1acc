"""The playground's API server and one kubelet, in this process, for tests."""

import asyncio
import contextlib
import json
import select
import shutil
import tempfile
from pathlib import Path

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import MERGE_PATCH, Session
from gpushare_playground.apiserver.server import ApiServer
from gpushare_playground.kubelet.agent import Kubelet
from gpushare_playground.kubelet.cleanup import stop_containers
from gpushare_playground.kubelet.paths import Folders
from gpushare_playground.kubelet.settings import Settings
from tests.patience import Deadline

PODS = "/api/v1/namespaces/default/pods"
RESOURCE = "example.com/part"
TOKEN = "token-of-the-test"


async def until(condition, what, within_s=60.0):
    """Wait until ``condition``, which may be async, returns something true; returns that."""
    deadline = Deadline(within_s)
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert not deadline.passed(), f"not within {deadline}: {what}"
        await asyncio.to_thread(select.select, [], [], [], 0.01)


class Cluster:
    """A test's cluster."""

    def __init__(self, session, folders, kubeconfig, lifeline):
        self.session = session
        self._lifeline = lifeline
        self.folders = folders
        self.kubeconfig = kubeconfig
        self.kubelet = None
        self._running = None

    def settings(self, **changes):
        defaults = {
            "node": "n1",
            "folders": self.folders,
            "kubeconfig": str(self.kubeconfig),
            "token": TOKEN,
            "labels": (("colour", "blue"),),
            "node_ip": "127.0.0.1",
            "restart_backoff_s": 0.2,
            "plugin_grace_s": 0.2,
            "lifeline": self._lifeline,
        }
        return Settings(**{**defaults, **changes})

    async def start_kubelet(self, **changes):
        self.kubelet = Kubelet(self.settings(**changes), self.session)
        await self.kubelet.__aenter__()
        self._running = asyncio.create_task(self.kubelet.run())
        await until(self.node_ready, "the node is ready")
        return self.kubelet

    async def stop_kubelet(self):
        """Stop the kubelet; for the pods as if it was killed: nothing of theirs is touched."""
        if self.kubelet is None:
            return
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        await self.kubelet.__aexit__(None, None, None)
        self.kubelet = None

    async def get(self, path):
        return json.loads(await self.session.request("GET", path))

    async def node(self):
        return await self.get("/api/v1/nodes/n1")

    async def node_ready(self):
        try:
            return any(one["type"] == "Ready" for one in (await self.node())["status"]["conditions"])
        except (ApiError, KeyError):
            return False

    async def amounts(self, resource=RESOURCE):
        """(capacity, allocatable) of a resource, as texts."""
        status = (await self.node())["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    async def amounts_are(self, expected, resource=RESOURCE):
        async def same():
            return await self.amounts(resource) == expected

        await until(same, f"{resource} is {expected}")

    async def patch(self, path, body):
        return json.loads(
            await self.session.request(
                "PATCH", path, body=json.dumps(body).encode(), content_type=MERGE_PATCH
            )
        )

    async def create(self, name, *containers, **spec):
        body = {
            "metadata": {"name": name},
            "spec": {
                "nodeName": "n1",
                "terminationGracePeriodSeconds": 2,
                "containers": list(containers) or [waiting()],
                **spec,
            },
        }
        return json.loads(await self.session.request("POST", PODS, body=json.dumps(body).encode()))

    async def delete(self, name, **options):
        await self.session.request("DELETE", f"{PODS}/{name}", body=json.dumps(options).encode())

    async def pod(self, name):
        """The pod, or ``None`` if it was deleted."""
        try:
            return await self.get(f"{PODS}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def pod_where(self, name, condition, what):
        """Wait until the pod meets the condition."""

        async def found():
            pod = await self.pod(name)
            return pod if pod is not None and condition(pod) else None

        return await until(found, f"pod {name}: {what}")

    async def running(self, name):
        return await self.pod_where(
            name,
            lambda pod: (
                pod["status"].get("phase") == "Running"
                and all("running" in one["state"] for one in pod["status"]["containerStatuses"])
            ),
            "runs",
        )

    async def finished(self, name):
        return await self.pod_where(
            name, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"), "has finished"
        )

    async def is_gone(self, name):
        async def gone():
            return await self.pod(name) is None

        await until(gone, f"pod {name} is gone")

    async def log(self, name, container="c", **options):
        query = "&".join(f"{key}={value}" for key, value in {"container": container, **options}.items())
        return (await self.session.request("GET", f"{PODS}/{name}/log?{query}")).decode()

    async def logs_are(self, name, text, container="c"):
        async def same():
            try:
                return text in await self.log(name, container)
            except ApiError as error:
                if error.status not in (400, 404, 502):
                    raise
                return False  # container or kubelet has yet to start

        await until(same, f"{text!r} is in the log of {name}")

    def checkpoint(self):
        return json.loads(self.folders.checkpoint.read_text())["Data"]

    def attempt(self, name, container="c"):
        return self.kubelet.attempt("default", name, container, previous=False)


def waiting(name="c", **more):
    """A container that runs until it is stopped."""
    return script("trap 'exit 0' TERM; while :; do sleep 0.05; done", name, **more)


def script(text, name="c", **more):
    return {"name": name, "image": "busybox", "command": ["sh", "-c", text], **more}


def limits(amount, resource=RESOURCE):
    return {"resources": {"limits": {resource: amount}}}


def container_of(pod, name="c"):
    statuses = [*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"]]
    return next(one for one in statuses if one["name"] == name)


@contextlib.asynccontextmanager
async def lifeline():
    """A process whose end stops all containers, also those that a kubelet was starting when it stopped."""
    process = await asyncio.create_subprocess_exec("sleep", "infinity")
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def small_cluster():
    """A cluster without its kubelet; whatever is started in it ends with it."""
    root = Path(tempfile.mkdtemp(prefix="gk"))
    folders = Folders(root / "n1")
    try:
        async with lifeline() as alive, ApiServer(str(root / "api"), kubelet_token=TOKEN) as server:
            access = load_access(str(server.kubeconfig_path))
            async with Session(access) as session:
                cluster = Cluster(session, folders, server.kubeconfig_path, alive)
                try:
                    yield cluster
                finally:
                    await cluster.stop_kubelet()
                    await asyncio.to_thread(stop_containers, folders.root, 0.5)
    finally:
        shutil.rmtree(root, ignore_errors=True)
