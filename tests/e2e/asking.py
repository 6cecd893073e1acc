"""Requests to a control plane as one user after another, by HTTP and by commands that people type."""

import http.client
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from gpushare.kube.auth.access import Access
from gpushare.kube.auth.tls import tls_context
from tests.admission_users import User
from tests.admission_writes import Write
from tests.patience import SLOWNESS

_WARNING = re.compile(r'299 - "((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Answer:
    """A status code, the object or Status in the response, and the texts of its warnings."""

    status: int
    body: Any
    warnings: tuple[str, ...]

    @property
    def taken(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        """The reason of a refusal; empty if it was accepted."""
        return "" if self.taken else str(self.body.get("message", self.body))


class Api:
    """One connection with the permissions of ``access``; a context manager."""

    def __init__(self, access: Access) -> None:
        self._token = access.token
        context = tls_context(access, access.client_certificate, access.client_key)
        self._connection = http.client.HTTPSConnection(
            urlsplit(access.server).netloc, context=context, timeout=30 * SLOWNESS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: User | None = None,
        dry: bool = False,
    ) -> Answer:
        """One request, impersonating ``user`` if there is one; a PATCH merges; ``dry`` is a dry run."""
        text = b"" if body is None else json.dumps(body).encode()
        merging = "application/merge-patch+json"
        headers = [("Content-Type", merging if method == "PATCH" else "application/json")]
        headers += [("Content-Length", str(len(text))), *_impersonation(user)]
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        self._connection.putrequest(method, path + ("?dryRun=All" if dry else ""), skip_accept_encoding=True)
        for name, value in headers:
            self._connection.putheader(name, value)
        self._connection.endheaders(text)
        response = self._connection.getresponse()
        raw = response.read()
        # http.client reads headers as Latin-1.
        lines = [line.encode("latin-1").decode() for line in response.headers.get_all("Warning") or ()]
        found = [hit for line in lines for hit in _WARNING.findall(line)]
        warnings = tuple(re.sub(r"\\(.)", r"\1", one) for one in found)
        return Answer(response.status, json.loads(raw) if raw[:1] == b"{" else raw.decode(), warnings)

    def create(self, obj: Mapping[str, Any], *, user: User | None = None, dry: bool = False) -> Answer:
        """POST an object among those of its kind."""
        return self.ask("POST", collection(obj), obj, user=user, dry=dry)

    def attempt(self, write: Write, *, user: User | None = None) -> Answer:
        """The response to a write of the table, by its own user or by another; nothing is stored."""
        resource, _, subresource = write.resource.partition("/")
        path = "/api/v1/" + ("nodes" if resource == "nodes" else f"namespaces/default/{resource}")
        if write.operation != "CREATE" or subresource:
            path += f"/{write.name}" + (f"/{subresource}" if subresource else "")
        method = {"CREATE": "POST", "UPDATE": "PATCH", "DELETE": "DELETE"}[write.operation]
        return self.ask(method, path, write.body or None, user=user or write.user, dry=True)

    def get(self, path: str) -> Any:
        """The object at ``path``, which must exist."""
        answer = self.ask("GET", path)
        assert answer.taken, answer
        return answer.body


def _impersonation(user: User | None) -> list[tuple[str, str]]:
    if user is None:
        return []
    extra = [(key, value) for key, values in user.extra.items() for value in values]
    return [
        ("Impersonate-User", user.name),
        *(("Impersonate-Group", group) for group in user.groups),
        *((f"Impersonate-Extra-{quote(key, safe='')}", value) for key, value in extra),
    ]


def prefix(api_version: str) -> str:
    """The path of an API version: ``/api/v1``, ``/apis/apps/v1``."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def collection(obj: Mapping[str, Any]) -> str:
    """The path to which an object is posted; its kind's plural is the kind with an s, which holds for all
    that we use.
    """
    namespace = obj["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = obj["kind"].lower() + ("es" if obj["kind"].endswith("s") else "s")
    return f"{prefix(obj['apiVersion'])}{within}/{plural}"


@dataclass(frozen=True)
class Commands:
    """kubectl and helm of the folder ``programs``, for the cluster of ``kubeconfig``."""

    kubeconfig: Path
    programs: Path

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command; both its streams are in ``stdout``."""
        own = {name: str(self.kubeconfig.parent / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")}
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        return subprocess.run(
            argv,
            input=stdin,
            env={**os.environ, **own, "KUBECONFIG": str(self.kubeconfig), "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120 * SLOWNESS,
            check=False,
        )

    def typed(self, *argv: str, stdin: str = "") -> str:
        """Run a command that must succeed; returns what it prints."""
        done = self.run(*argv, stdin=stdin)
        assert done.returncode == 0, f"$ {' '.join(argv)}\n{done.stdout}"
        return done.stdout

    def json(self, *argv: str) -> Any:
        """``kubectl … -o json``, decoded."""
        return json.loads(self.typed("kubectl", *argv, "-o", "json"))

    def apply(self, *manifests: Mapping[str, object]) -> None:
        """``kubectl apply -f -``."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.typed("kubectl", "apply", "-f", "-", stdin=json.dumps(listed))
