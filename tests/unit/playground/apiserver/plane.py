"""An API server without HTTP, to write to directly, with the product's admission."""

import time

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.naming import utc_now
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.store import Store
from gpushare_playground.apiserver.writes.admission import Admission
from gpushare_playground.apiserver.writes.patching import merge_patch
from gpushare_playground.apiserver.writes.writing import Outcome, WriteOptions, Writer
from tests.admission_users import SCHEDULER, agent_on
from tests.admission_words import COUNTING
from tests.admission_writes import OBJECTS, WRITES, Write

AGENT = agent_on("n1")
#: The others are deletions, or need tokens that name a node, which the embedded API server does not have.
HERE = [
    write
    for write in WRITES
    if write.operation != "DELETE"
    and write.resource != "bindings"
    and (write.user.name != AGENT.name or not write.says)
]


class Plane:
    """The writer of an API server with the namespaces and objects of the table."""

    def __init__(self) -> None:
        self.store = Store(clock=time.monotonic)
        self.registry = Registry()
        admission = Admission.guarded([SCHEDULER.name, AGENT.name], lambda: COUNTING)
        self.writer = Writer(self.store, self.registry, admission, utc_now)
        self.add_namespace("default", {})

    def add_namespace(self, name: str, labels: dict[str, str]) -> None:
        namespaces = self.resource("v1", "namespaces")
        self.writer.create(namespaces, "", {"metadata": {"name": name, "labels": labels}}, WriteOptions())

    def resource(self, api_version: str, plural: str) -> Resource:
        group, _, version = api_version.rpartition("/")
        found = self.registry.find(group, version, plural)
        assert found is not None
        return found

    def create(self, plural: str, obj: Object, user: str = "") -> Outcome:
        resource = self.resource(obj["apiVersion"], plural)
        return self.writer.create(resource, obj["metadata"].get("namespace", ""), obj, WriteOptions(user))

    def replace(self, plural: str, obj: Object) -> Outcome:
        resource, metadata = self.resource(obj["apiVersion"], plural), obj["metadata"]
        return self.writer.replace(resource, metadata["namespace"], metadata["name"], obj, WriteOptions())

    def fill(self) -> None:
        """Create the objects of the table."""
        for (plural, _), obj in OBJECTS.items():
            self.create(plural, obj, SCHEDULER.name)

    def write(self, write: Write) -> None:
        """Do one of ``HERE``; raises ``ApiError``."""
        plural, _, subresource = write.resource.partition("/")
        resource, user = self.resource("v1", plural), write.user.name
        namespace = "default" if resource.namespaced else ""
        if subresource == "binding":
            self.writer.admit_binding(resource, write.body, user)
        elif write.operation == "CREATE":
            self.create(plural, write.body, user)
        else:
            patched = lambda obj: merge_patch(obj, write.body)  # noqa: E731
            self.writer.patch(resource, namespace, write.name, patched, WriteOptions(user), subresource)
