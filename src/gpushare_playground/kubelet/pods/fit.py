"""The kubelet's own check that a pod fits: what it asks for against what the node has left.

It runs after device allocation, as in a real kubelet; so lack of GPU memory is reported by the device
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
    """What a pod asks for over all its containers, as Kubernetes counts (sidecars beside, init by maximum).

    Raises ``Rejected`` on a quantity that is none.
    """
    together: Amounts = {}
    peak: Amounts = {}
    for container in pod.init_containers:
        asked = _amounts(container.requests, pod)
        if container.sidecar:
            _add(together, asked)
            asked = {}
        for name, amount in {**dict.fromkeys(asked, Fraction(0)), **together}.items():
            peak[name] = max(peak.get(name, Fraction(0)), amount + asked.get(name, Fraction(0)))
    for container in pod.spec.containers:
        _add(together, _amounts(container.requests, pod))
    for name, amount in peak.items():
        together[name] = max(together.get(name, Fraction(0)), amount)
    return together


def check_fit(pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, Quantity]) -> None:
    """Raise ``Rejected`` (reason ``OutOfcpu``, ``OutOfpods`` …) when ``pod`` does not fit beside ``others``.

    Resources that the node does not have at all are not checked, as the real one does not.
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


def _out_of(pod: Pod, name: str, asked: Fraction, used: Fraction, have: Fraction) -> Rejected:
    # The kubelet tells CPU in thousandths, everything else in whole units.
    scale = 1000 if name == "cpu" else 1
    return Rejected(
        f"pod {pod.key}",
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {int(asked * scale)}, "
        f"used: {int(used * scale)}, capacity: {int(have * scale)}",
    )


def _amounts(asked: Mapping[str, Quantity], pod: Pod) -> Amounts:
    try:
        return {name: parse_quantity(amount) for name, amount in asked.items()}
    except InvalidQuantity as error:
        raise Rejected(f"pod {pod.key}", "UnexpectedAdmissionError", str(error)) from None


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount
