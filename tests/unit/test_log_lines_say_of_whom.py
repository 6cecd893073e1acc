"""Every log line about a pod names it in its ``extra`` fields. Checked in the source, so that rare lines are covered, too."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "src" / "gpushare"
SUBPACKAGES: Final = ("scheduler", "nodeagent", "admission", "kube")
LEVELS: Final = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
LEVEL: Final = re.compile(rf"\.({'|'.join(sorted(LEVELS))})\(")
#: Words in names of variables, fields and functions that show that a function handles pods.
OF_PODS: Final = frozenset(
    {"pod", "pods", "uid", "uids", "claim", "claims", "claimed", "guest", "guests", "holder", "slot", "due", "victim",
     "victims", "mover", "movers"}
)  # fmt: skip
#: Texts of lines about the process itself, or about something other than a pod, in modules that handle pods: by module.
PROCESS: Final[dict[str, frozenset[str]]] = {
    "scheduler/plugins/resource_policy/status_writer.py": frozenset(
        {"ResourcePolicies: %s; writing again in %.1f s", "ResourcePolicy %s: its status is not written: %s"}
    ),
    "scheduler/plugins/autoscaling/placeholder_pods.py": frozenset(
        {"placeholder pods: %s; looking again in %.1f s"}
    ),
    "admission/main.py": frozenset({"serving at %s:%d, API server %s"}),
    "scheduler/main.py": frozenset({"%s on http://%s:%d", "serving http://%s:%d%s, API server %s", "ready"}),
    "scheduler/plugins/elastic_quota/watch.py": frozenset(
        {"ElasticQuotaTree %s: its status cannot be written: %s"}
    ),
    "scheduler/plugins/elastic_quota/quotas.py": frozenset({"ElasticQuotaTree %s: %s", "elastic quotas: %s"}),
    "scheduler/leader/resync.py": frozenset(
        {
            "pods and nodes are listed again, the leader is unknown: %s",
            "pods and nodes are not listed again yet: %s",
            "pods and nodes were listed again, %s leads",
        }
    ),
    "nodeagent/agent.py": frozenset({"there is no node %s; waiting for it", "mode of node %s: %s → %s"}),
    "nodeagent/allocate/allocator.py": frozenset(
        # The second is the status of the kubelet's socket.
        {"cannot list the pods of this node: %s", "%s"}
    ),
    # Lines about ResourceClaims, which several pods may use, have the claims' names.
    "nodeagent/dra/claim_files.py": frozenset({"%s cannot be read and is ignored: %s"}),
    "nodeagent/dra/driver.py": frozenset({"ResourceClaim %s is gone and was never unprepared", "%s"}),
    "nodeagent/dra/plugin.py": frozenset({"not prepared: %s", "not unprepared: %s"}),
    "nodeagent/dra/preparer.py": frozenset(
        {
            "ResourceClaim %s: prepared with %s",
            "ResourceClaim %s: unprepared",
            "files of ResourceClaims cannot be listed: %s",
        }
    ),
    "nodeagent/isolation/storage/garbage_collector.py": frozenset(
        {
            "cannot check for lost container files yet: %s",
            "nothing is removed: %s",
            "release %s of the isolation libraries is unused and was removed",
        }
    ),
    "nodeagent/isolation/selftest/selftest.py": frozenset(
        {
            "isolation libraries %s passed the self-test on this node's driver",
            "isolation libraries %s on this node's driver: %s: %s",
        }
    ),
    "nodeagent/reconcile/reconciler.py": frozenset(
        {"%s; until it responds, records are based on the agent's own allocations"}
    ),
}


@dataclass(frozen=True)
class Line:
    """A call of a logger: its text, and the fields of its ``extra`` (``None``: no fields, or none that can be determined).

    ``may_concern_a_pod``: its function, or its text, has a word of ``OF_PODS``.
    """

    module: str
    number: int
    text: str
    fields: frozenset[str] | None
    may_concern_a_pod: bool


def lines_of(module: str, source: str) -> list[Line]:
    """All lines that a module logs."""
    if not LEVEL.search(source):
        return []
    tree = ast.parse(source)
    loggers = {"logging", *_loggers(tree)}
    found = []
    for scope in (tree, *_functions(tree)):
        handles_pods = any(
            not OF_PODS.isdisjoint(_split(name)) for node in _own(scope) for name in _names(node)
        )
        for call in _own_calls(scope):
            called = call.func
            if isinstance(called, ast.Attribute) and called.attr in LEVELS and _root(called.value) in loggers:
                keywords = {one.arg: one.value for one in call.keywords}
                fields = _fields(keywords.get("extra"), scope, tree)
                text = _text(call)
                concerns_a_pod = handles_pods or not OF_PODS.isdisjoint(_split(text))
                found.append(Line(module, call.lineno, text, fields, concerns_a_pod))
    return sorted(found, key=lambda line: line.number)


def _loggers(tree: ast.Module) -> Iterator[str]:
    """Names of variables and attributes that ``logging.getLogger`` is assigned to."""
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
        if is_call and _root(node.value.func) == "getLogger":
            yield from map(_root, node.targets if isinstance(node, ast.Assign) else [node.target])


def _root(node: ast.expr) -> str:
    """``logger`` of ``logger``, and of ``self.logger``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a scope, but not in functions within it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FunctionNode):
            yield child
            yield from _own(child)


def _own_calls(scope: ast.AST) -> Iterator[ast.Call]:
    return (node for node in _own(scope) if isinstance(node, ast.Call))


def _text(call: ast.Call) -> str:
    """The line's format string."""
    return " ".join(
        one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


def _fields(extra: ast.expr | None, scope: ast.AST, tree: ast.Module) -> frozenset[str] | None:
    """The arguments of ``about``: directly, by a variable of the function, or by a function of the module."""
    if isinstance(extra, ast.IfExp):
        sides = [one for one in (extra.body, extra.orelse) if ast.unparse(one) != "None"]
        named = [_fields(one, scope, tree) for one in sides]
        return None if not named or None in named else frozenset().union(*(one or () for one in named))
    if isinstance(extra, ast.Name):
        values = [
            node.value
            for node in _own(scope)
            if isinstance(node, ast.Assign) and extra.id in map(_root, node.targets)
        ]
        named = [_fields(one, scope, tree) for one in values]
        return (
            None
            if not named or None in named
            else frozenset.intersection(*(one or frozenset() for one in named))
        )
    if not isinstance(extra, ast.Call):
        return None
    if _root(extra.func) == "about":
        return frozenset(one.arg for one in extra.keywords if one.arg is not None)
    made_by = [one for one in _functions(tree) if one.name == _root(extra.func)]
    returned = [node.value for one in made_by for node in _own(one) if isinstance(node, ast.Return)]
    named = [_fields(one, made_by[0], tree) for one in returned]
    return None if not named or None in named else frozenset().union(*(one or () for one in named))


def _names(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "name", "asname"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield name


def _split(name: str) -> set[str]:
    """``{"pod", "record"}`` of ``PodRecord`` and of ``pod_record``."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@cache
def sources() -> dict[str, str]:
    return {
        str(path.relative_to(PACKAGE)): path.read_text()
        for name in SUBPACKAGES
        for path in sorted((PACKAGE / name).rglob("*.py"))
    }


def faults_of(module: str, source: str) -> list[str]:
    """Descriptions of what is wrong with the lines of a module."""
    found = []
    for line in lines_of(module, source):
        where = f"{module}:{line.number} {line.text!r}"
        if line.text in PROCESS.get(module, ()):
            if line.fields is not None:
                found.append(f"{where} has fields in extra: remove it from the list")
        elif line.fields is None:
            # All lines of a node's process have its node.
            of_a_node = "node %s" in line.text and not module.startswith("nodeagent/")
            if line.may_concern_a_pod or of_a_node:
                found.append(f"{where} does not say of whom it is: extra=about(…)")
        elif "pod %s" in line.text and not line.fields >= {"pod", "uid"} and "request" not in line.fields:
            found.append(f"{where} does not say the pod and its UID")
        elif "node %s" in line.text and "node" not in line.fields:
            found.append(f"{where} does not say the node")
    return found


@pytest.mark.parametrize("module", sorted(sources()))
def test_every_line_that_may_be_about_a_pod_names_the_pod(module: str) -> None:
    assert faults_of(module, sources()[module]) == []


def test_listed_lines_about_the_process_exist() -> None:
    existing = {module: {line.text for line in lines_of(module, sources()[module])} for module in PROCESS}
    assert {
        module: sorted(texts - existing[module])
        for module, texts in PROCESS.items()
        if texts - existing[module]
    } == {}


def test_log_lines_with_fields_are_found_in_each_subpackage() -> None:
    """Otherwise the other tests would check nothing."""
    lines = [line for module, source in sources().items() for line in lines_of(module, source)]
    assert {line.module.partition("/")[0] for line in lines if line.fields} == set(SUBPACKAGES)


HEAD = "import logging\nlogger = logging.getLogger(__name__)\n"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("def f(record):\n    logger.info('bound', extra=about(pod=record.pod, uid=record.uid))", ""),
        ("def f(record):\n    logger.info('bound: %s', record.pod)", "does not say of whom"),
        ("def f(error):\n    logger.info('a pod was lost: %s', error)", "does not say of whom"),
        ("def f(error):\n    logger.info('again: %s', error)", ""),
        ("def f(key):\n    logger.info('pod %s', key, extra=about(pod=key))", "the pod and its UID"),
        ("def f(pod):\n    logger.info('pod %s is on node %s', extra=about(pod=pod.key, uid=pod.uid))", "say the node"),
        ("def f(name):\n    logger.info('node %s is full', name)", "does not say of whom"),
        ("def f(pod):\n    extra = about(pod=pod.key, uid=pod.uid)\n    logger.info('bound', extra=extra)", ""),
        ("def f(pod):\n    extra = {}\n    logger.info('bound', extra=extra)", "does not say of whom"),
        ("def f(pod):\n    extra = about(uid=pod) if pod else None\n    logger.info('bound', extra=extra)", ""),
        ("def of(pod):\n    return about(uid=pod)\ndef f(pod):\n    logger.info('bound', extra=of(pod))", ""),
        ("class A:\n    log = logging.getLogger('a')\n    def f(self, pod):\n        self.log.error('%s', pod)", "does not say of whom"),
        ("def f(pod):\n    logging.warning('%s', pod)", "does not say of whom"),
        ("def f(holders):\n    def g(uid):\n        logger.log(10, '%s', uid)\n    logger.info('done')", "does not say of whom"),
    ],
)  # fmt: skip
def test_fields_of_a_line_are_found_in_every_form(source: str, wrong: str) -> None:
    found = faults_of("scheduler/some.py", HEAD + source)
    assert len(found) == bool(wrong), found
    assert all(wrong in one for one in found)
