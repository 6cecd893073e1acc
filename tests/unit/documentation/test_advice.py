"""Commands in the product's messages are marked as code and valid."""

import functools

import pytest

from documentation.__main__ import PROJECT
from documentation.advice import Text, faults, from_code, of_module, wrong

SOURCES = PROJECT / "src"


@functools.cache
def texts() -> list[Text]:
    """Read on first use, because it takes long."""
    return from_code(SOURCES)


def test_every_suggested_command_is_marked_and_valid() -> None:
    found = [f"{one.where}: {fault}" for one in texts() for fault in faults(one, PROJECT)]
    assert not found, "\n".join(found)


def test_commands_are_found_in_every_package_that_gives_advice() -> None:
    """A reader that finds nothing would pass every other test here."""
    packages = [one.where.partition("/")[0] for one in texts() for _ in one.commands]
    for package, least in (("doctor", 40), ("reasons", 6), ("simulate", 5), ("inspect", 5), ("nodeagent", 2)):
        assert packages.count(package) >= least, package


SOURCE = '''\
"""`kubectl gett` in a docstring."""
_APP = "gpushare-admission"


def look(facts, chart, setting):
    """And `kubectl gett` here."""
    yield fault("x", "y", f"`kubectl -n {facts.n} describe pods -l app.kubernetes.io/name={_APP}`")
    yield fault("x", "y", f"`kubectl label node {facts.n} {names.LABEL_MODE}={NodeMode.SHARE.value}`")
    return f"`helm upgrade {chart} charts/{chart} -n x --reuse-values --set {setting}`: {'a' if facts else 'b'}"
'''


def test_texts_are_as_printed_with_placeholders_for_what_is_unknown() -> None:
    found = [one.commands for one in of_module("doctor/x.py", SOURCE)]
    assert [command for one in found for command in one] == [
        "kubectl -n … describe pods -l app.kubernetes.io/name=gpushare-admission",
        "kubectl label node … ack.node.gpu.schedule=share",
        "helm upgrade CHART charts/CHART -n x --reuse-values --set KEY=VALUE",
    ]


@pytest.mark.parametrize(
    ("where", "text", "expected"),
    [
        ("doctor/x.py:1", "kubectl get nodes says it", "`kubectl` is no code"),
        ("doctor/x.py:1", "nvidia-smi on the node", "`nvidia-smi` is no code"),
        ("doctor/x.py:1", "`nvidia-smi` on the node", ""),
        ("inspect/x.py:1", "see kubectl get pods", "`kubectl get` is no code"),
        ("inspect/x.py:1", "kubectl could not be started", ""),
        ("doctor/x.py:1", "`kubectl gett pods`", "no command gett"),
        ("doctor/x.py:1", "`kubectl label node … ack.node.gpu.shedule-`", "is no name of ours"),
        ("doctor/x.py:1", "`helm upgrade ack-co-scheduler`", "takes 2 words"),
        ("doctor/x.py:1", "`helm upgrade` of the chart", ""),
    ],
)
def test_advice_that_is_not_marked_up_or_not_a_real_command_is_reported(
    where: str, text: str, expected: str
) -> None:
    found = list(faults(Text(where, text), PROJECT))
    assert any(expected in one for one in found) if expected else found == []


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("helm upgrade ack-co-scheduler charts/ack-co-scheduler", "without -n"),
        ("helm upgrade a charts/ack-co-scheduler -n x --set replicas=2", "without --reuse-values"),
        ("helm upgrade a charts/ack-co-scheduler -n x --reuse-values --set replicas=2", ""),
        ("nodeAgent.isolation.backendd", "no chart has such a value"),
        ("nodeAgent.isolation.backend", ""),
        ("--driver-rot", "no such option"),
        ("--driver-root", ""),
        ("systemctl statsu kubelet", "unknown words"),
        ("systemctl status kubelet", ""),
        ("nvidia-smi -i 0 -mig 2", "unknown words"),
        ("dmesg | grep -i xid", ""),
        ("kubectl -n x exec POD -- gpushare doctor node --hostroot /host", "--hostroot"),
        ("kubectl -n x exec POD -- gpushare doctor node --host-root /host", ""),
        ("enable_cdi = true", ""),
    ],
)
def test_advice_that_names_something_missing_is_reported(marked: str, expected: str) -> None:
    found = wrong(marked, PROJECT)
    assert (expected in found) if expected else found == ""
