"""A control plane as a context manager: started in order, awaited, and removed completely."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare_playground.certificate_authority import (
    SERVER_NAMES,
    Authority,
    Identity,
    by_certificate,
    kubeconfig_text,
    signing_pair,
    write_private,
)
from gpushare_playground.cluster.parts import Part
from gpushare_playground.controlplane import commands
from gpushare_playground.controlplane.binaries import COMPONENTS, find, version_of
from gpushare_playground.controlplane.errors import ControlPlaneError
from gpushare_playground.controlplane.layout import Layout
from gpushare_playground.controlplane.ports import LOOPBACK, free_ports
from gpushare_playground.controlplane.scheduler_config import completed, plain

CONTEXT: Final = "playground-real"
ADMIN: Final = "playground-admin"
_MASTERS: Final = "system:masters"
_NODE_USER: Final = "system:node:"
_START_S: Final = 300.0
_POLL_S: Final = 0.05
_ENDS_BEFORE_GIVING_UP: Final = 3
_ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts/default"


class ControlPlane:
    """``async with ControlPlane(binaries, state) as plane``: accepts objects once entered.

    ``state`` is created if necessary and must not contain an earlier control plane. ``scheduler_config`` is a
    KubeSchedulerConfiguration (``clientConnection.kubeconfig`` is set if it is missing); ``extra`` has
    further flags by component. ``report`` is called with a line for each component. Entering raises ``ControlPlaneError``.
    """

    def __init__(
        self,
        binaries: Path,
        state: Path,
        *,
        components: Sequence[str] = COMPONENTS,
        scheduler_config: Path | None = None,
        extra: Mapping[str, Sequence[str]] | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        self.parts: dict[str, Part] = {}
        """Every component by name; each can be stopped, started and killed."""
        self._folder = binaries
        self._state = state
        self._components = tuple(components)
        self._scheduler_config = scheduler_config
        self._extra = dict(extra or {})
        self._report = report

    # --- paths, once it is entered ----------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubeconfig_of(ADMIN, (_MASTERS,))

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed all others."""
        return self._layout.certificate("ca")

    def url(self, component: str) -> str:
        """The URL of a component (``/metrics`` and such need the administrator's certificate)."""
        return self._layout.url(component)

    @property
    def version(self) -> tuple[int, int]:
        """(major, minor) of the API server."""
        return version_of(self._binaries["kube-apiserver"])

    def kubeconfig_of(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate for ``user``, created at the first request.

        A user has the permissions that RBAC grants to its name and ``groups``; ``system:node:NAME`` is a node, in the
        group ``system:nodes``.
        """
        path = self._layout.kubeconfig(user)
        if not path.exists():
            if user.startswith(_NODE_USER):
                groups = ("system:nodes", *groups)
            self._write_kubeconfig(user, groups)
        return path

    def server_certificate(
        self, name: str, hosts: Sequence[str], *, common_name: str = "", organizations: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """(certificate, key) files of a server for ``hosts``, which clients that trust ``ca`` accept."""
        self._write_identity(
            name, self._authority.issue(common_name or name, organizations=organizations, hosts=hosts)
        )
        return self._layout.certificate(name), self._layout.key(name)

    # --- lifecycle ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Start all components, as entering does."""
        self._binaries = await asyncio.to_thread(find, self._folder, self._components)
        if (self._state / "etcd").exists():
            raise ControlPlaneError(f"{self._state} holds an earlier control plane; give an empty folder")
        self._layout = Layout.chosen(self._state)
        for folder in ("pki", "log", "kubeconfig"):
            (self._layout.state / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_identities()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End every component: writers first, etcd last."""
        last = ("kube-apiserver", "etcd")
        await asyncio.gather(*(part.stop() for name, part in self.parts.items() if name not in last))
        for name in last:
            if name in self.parts:
                await self.parts[name].stop()

    async def _start(self) -> None:
        layout, binaries = self._layout, self._binaries
        if "etcd" in binaries:
            await self._run("etcd", [*commands.etcd(binaries["etcd"], layout), *self._flags("etcd")])
        if (binary := binaries.get("kube-apiserver")) is not None:
            await self._run(
                "kube-apiserver", commands.kube_apiserver(binary, layout, self._flags("kube-apiserver"))
            )
        waits = []
        if (binary := binaries.get("kube-controller-manager")) is not None:
            flags = self._flags("kube-controller-manager")
            waits.append(
                self._run("kube-controller-manager", commands.kube_controller_manager(binary, layout, flags))
            )
            waits.append(self._until(self._account_made, "kube-controller-manager"))
        if "kube-scheduler" in binaries:
            text = self._scheduler_text(self._scheduler_config) if self._scheduler_config else ""
            waits.append(self._run_scheduler("kube-scheduler", text))
        await asyncio.gather(*waits)

    async def add_scheduler(self, name: str, config: str) -> Part:
        """Run a further kube-scheduler as the part ``name``, with ``config``, a KubeSchedulerConfiguration.

        Extenders belong to a configuration, not to a profile: one profile with its own extenders needs its own
        process. Returns once it is healthy; raises ``ControlPlaneError``.
        """
        if name in self.parts:
            raise ControlPlaneError(f"there is a part {name} already; choose another name")
        if "kube-scheduler" not in self._binaries:
            self._binaries |= await asyncio.to_thread(find, self._folder, ["kube-scheduler"])
        [self._layout.ports[name]] = free_ports(1)
        await self._run_scheduler(name, config)
        return self.parts[name]

    async def _run_scheduler(self, name: str, config: str) -> None:
        kubeconfig = str(self.kubeconfig_of("system:kube-scheduler"))
        text = completed(config, kubeconfig, name) if config else plain(kubeconfig)
        path = self._layout.state / f"{name}.yaml"
        path.write_text(text)
        flags = self._flags("kube-scheduler")
        await self._run(
            name, commands.kube_scheduler(self._binaries["kube-scheduler"], self._layout, name, path, flags)
        )

    def _scheduler_text(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise ControlPlaneError(f"scheduler configuration {path}: {error.strerror}") from error

    def _flags(self, component: str) -> Sequence[str]:
        return self._extra.get(component, ())

    async def _run(self, name: str, command: list[str]) -> None:
        part = self.parts[name] = Part(name, command, self._layout.log(name), report=self._report)
        started_s = time.monotonic()
        part.start()
        await self.ready(name)
        self._report(f"{name}: ready ({time.monotonic() - started_s:.1f} s)")

    # --- waiting ----------------------------------------------------------------------------------

    async def ready(self, name: str) -> None:
        """Wait until a component reports that it is healthy, e.g. after ``parts[name].kill``; raises ``ControlPlaneError``."""
        path = {"etcd": "/health", "kube-apiserver": "/readyz"}.get(name, "/healthz")
        identity = self._etcd if name == "etcd" else self._admin
        access = Access(
            self.url(name),
            source="the control plane",
            ca=self._authority.identity.certificate_pem,
            client_certificate=identity.certificate_pem,
            client_key=identity.key_pem,
        )
        async with Session(access) as session:

            async def well() -> bool:
                return bool(await session.request("GET", path, timeout_s=5.0))

            await self._until(well, name)

    async def _account_made(self) -> bool:
        """Whether the default account exists, without which no pods can be created in a namespace."""
        async with Session(load_access(str(self.kubeconfig))) as session:
            return bool(await session.request("GET", _ACCOUNT, timeout_s=5.0))

    async def _until(self, reached: Callable[[], Awaitable[bool]], name: str) -> None:
        started_s = time.monotonic()
        ends = self.parts[name].restarts
        problem: Exception | None = None
        while time.monotonic() - started_s < _START_S:
            try:
                if await reached():
                    return
            except (OSError, KubeError) as error:
                problem = error
            part = self.parts[name]
            if part.restarts - ends >= _ENDS_BEFORE_GIVING_UP:
                break
            await asyncio.sleep(_POLL_S)
        log_end = self.parts[name].log_tail()
        raise ControlPlaneError(
            f"{name} does not get ready after {time.monotonic() - started_s:.0f} s ({problem}). "
            f"Its log {self.parts[name].log} ends so:\n{log_end}"
        )

    # --- certificates -----------------------------------------------------------------------------

    def _make_identities(self) -> None:
        self._authority = Authority.new("gpushare-playground-ca")
        self._write_identity("ca", self._authority.identity)
        hosts = (*SERVER_NAMES, LOOPBACK, "::1", commands.API_SERVICE_IP)
        self._write_identity("server", self._authority.issue("kube-apiserver", hosts=hosts))
        self._etcd = self._authority.issue("etcd", hosts=("localhost", LOOPBACK))
        self._write_identity("etcd", self._etcd)
        kubelet_client = self._authority.issue("kube-apiserver-kubelet-client", organizations=[_MASTERS])
        self._write_identity("kubelet-client", kubelet_client)
        private, public = signing_pair()
        write_private(self._layout.key("accounts"), private.decode())
        write_private(self._layout.pki / "accounts.pub", public.decode())
        self._admin = self._write_kubeconfig(ADMIN, (_MASTERS,))
        for user in ("system:kube-controller-manager", "system:kube-scheduler"):
            self._write_kubeconfig(user, ())

    def _write_identity(self, name: str, identity: Identity) -> None:
        write_private(self._layout.certificate(name), identity.certificate_pem.decode())
        write_private(self._layout.key(name), identity.key_pem.decode())

    def _write_kubeconfig(self, user: str, groups: Sequence[str]) -> Identity:
        identity = self._authority.issue(user, organizations=groups)
        text = kubeconfig_text(
            self.url("kube-apiserver"),
            self._authority.identity.certificate_pem,
            user,
            by_certificate(identity),
            CONTEXT,
        )
        write_private(self._layout.kubeconfig(user), text)
        return identity
