"""Services behind the API server's proxy, as people reach them: by ``kubectl proxy``, with their own permissions."""

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.product.product import NAMESPACE, Product
from tests.patience import SLOWNESS

_ANSWER_S: Final = 30.0 * SLOWNESS
_SAYS: Final = "Starting to serve on 127.0.0.1:"


@dataclass(frozen=True)
class Answer:
    """Status, headers by their names in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class News:
    """One event of a stream: its number, its kind, its data as text."""

    id: str
    event: str
    data: str


@dataclass
class Proxied:
    """A path behind a proxy on loopback; ``headers`` go with every request."""

    port: int
    path: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """As a browser opens it."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    def ask(self, path: str = "", body: object = None, **headers: str) -> Answer:
        """GET, or POST of ``body`` as JSON; names of ``headers`` are written with ``_`` for ``-``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            kind = {} if body is None else {"content-type": "application/json"}
            headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(
                "GET" if body is None else "POST",
                self.path + path,
                text,
                {**self.headers, **kind, **headers_sent},
            )
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, received, answer.read())

    @contextlib.contextmanager
    def listening(self, path: str, **headers: str) -> Iterator[Iterator[News]]:
        """The events of a stream as they arrive, until the block is left."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request("GET", self.path + path, headers={**self.headers, **headers_sent})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers.get_content_type() == "text/event-stream"
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[News]:
    fields: dict[str, str] = {}
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            yield News(fields.get("id", ""), fields["event"], fields.get("data", ""))
            fields = {}


@contextlib.contextmanager
def kubectl_proxy(product: Product, *arguments: str, port: int = 0) -> Iterator[int]:
    """``kubectl proxy``: the API server on a port of loopback, with the permissions of the user who runs it."""
    with product.start("kubectl", "proxy", f"--port={port}", *arguments) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(_SAYS), line
            yield int(line.removeprefix(_SAYS))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def service_path(service: str, port: str) -> str:
    """The API server's proxy path to a Service's port."""
    return f"/api/v1/namespaces/{NAMESPACE}/services/{service}:{port}/proxy/"


def pod_path(pod: str, port: int) -> str:
    """The API server's proxy path to a pod's port."""
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy/"
