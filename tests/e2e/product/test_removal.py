"""A full uninstall leaves a cluster as it was; users' objects stay."""

import yaml

from tests.e2e.cluster import wait_for
from tests.e2e.product.audit import calls, granted
from tests.e2e.product.conftest import Departure
from tests.e2e.product.left_on_nodes import Traces
from tests.e2e.product.product import INSTALLER, NAMESPACE

#: Kubelets report a plugin's resources for five minutes after its end.
WITHIN_S = 420.0


def test_labels_annotations_capacity_files_and_objects_are_as_before(departure: Departure) -> None:
    departure.pages.type("removed")
    differences: list[str] = []

    def as_before() -> bool:
        differences[:] = Traces.of(departure.cluster).beside(departure.before)
        return not differences

    try:
        wait_for("everything is as it was", as_before, timeout=WITHIN_S, every=2)
    except TimeoutError:
        assert not differences, "\n".join(differences)


def test_the_cleanup_has_exactly_the_permissions_that_it_uses(departure: Departure) -> None:
    account = "gpushare-uninstall"
    made = list(calls(departure.cluster, [account]))
    # It may live a moment longer than the roles that it deletes.
    last_delete = max(number for number, call in enumerate(made) if call.right.verb == "delete")
    assert not [call for call in made[:last_delete] if call.forbidden]
    used = {call.right for call in made}
    rendered = departure.product.typed("helm", "template", INSTALLER, f"charts/{INSTALLER}", "-n", NAMESPACE)
    roles = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] in ("ClusterRole", "Role")]
    allowed = set(granted(roles, [account]))
    assert allowed, "the chart renders no role for what cleans up"
    assert allowed <= used, f"rights that were not used: {', '.join(map(str, sorted(allowed - used)))}"
