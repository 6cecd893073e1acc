"""The kubelet's own check that a pod fits: its requests against the free resources of the node.

It runs after device allocation, as in a real kubelet; therefore lack of GPU memory is reported by the device
check (UnexpectedAdmissionError), and ``OutOf…`` by CPU, memory, pods, and resources that no plugin serves.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import Quantity, parse_quantity
from gpushare_playground.kubelet.errors import Rejected
from gpushare_playground.kubelet.podspec import Pod

Amounts = dict[str, Fraction]


def pod_requests(pod: Pod) -> Amounts:
    """A pod's requests over all its containers, as Kubernetes counts them (sidecars added, init containers by maximum).

    Raises ``Rejected`` for an invalid quantity.
    """
    together: Amounts = {}
    peak: Amounts = {}
    for container in pod.init_containers:
        requested = _amounts(container.requests, pod)
        if container.sidecar:
            _add(together, requested)
            requested = {}
        for name, amount in {**dict.fromkeys(requested, Fraction(0)), **together}.items():
            peak[name] = max(peak.get(name, Fraction(0)), amount + requested.get(name, Fraction(0)))
    for container in pod.spec.containers:
        _add(together, _amounts(container.requests, pod))
    for name, amount in peak.items():
        together[name] = max(together.get(name, Fraction(0)), amount)
    return together


def check_fit(pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, Quantity]) -> None:
    """Raise ``Rejected`` (reason ``OutOfcpu``, ``OutOfpods`` …) if ``pod`` does not fit next to ``others``.

    Resources that the node does not have at all are not checked, as in the real one.
    """
    used: Amounts = {}
    count = 0
    for other in others:
        count += 1
        _add(used, pod_requests(other))
    have = {name: parse_quantity(amount) for name, amount in allocatable.items()}
    if "pods" in have and count + 1 > have["pods"]:
        raise _out_of(pod, "pods", Fraction(1), Fraction(count), have["pods"])
    for name, amount in pod_requests(pod).items():
        if name in have and amount > 0 and amount + used.get(name, Fraction(0)) > have[name]:
            raise _out_of(pod, name, amount, used.get(name, Fraction(0)), have[name])


def _out_of(pod: Pod, name: str, requested: Fraction, used: Fraction, have: Fraction) -> Rejected:
    # The kubelet reports CPU in thousandths, everything else in whole units.
    scale = 1000 if name == "cpu" else 1
    return Rejected(
        f"pod {pod.key}",
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {int(requested * scale)}, "
        f"used: {int(used * scale)}, capacity: {int(have * scale)}",
    )


def _amounts(requested: Mapping[str, Quantity], pod: Pod) -> Amounts:
    try:
        return {name: parse_quantity(amount) for name, amount in requested.items()}
    except InvalidQuantity as error:
        raise Rejected(f"pod {pod.key}", "UnexpectedAdmissionError", str(error)) from None


def _add(total: Amounts, amounts: Mapping[str, Fraction]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, Fraction(0)) + amount
