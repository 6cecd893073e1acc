"""The definitions of our own kinds, ResourcePolicy and ElasticQuotaTree: copies of those that the chart ack-co-scheduler installs."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent / "kinds"
#: Name of the definition → its manifest.
MANIFESTS: Final = {
    "resourcepolicies.scheduling.alibabacloud.com": _FOLDER / "resourcepolicies.yaml",
    "elasticquotatrees.scheduling.sigs.k8s.io": _FOLDER / "elasticquotatree.yaml",
}


def definition(name: str) -> dict[str, Any]:
    """The CustomResourceDefinition of that name, as this release has it; raises ``KeyError``."""
    return deepcopy(_read(MANIFESTS[name]))


@cache
def _read(manifest: Path) -> dict[str, Any]:
    # Large, and most who ask for a path or a name need none of it.
    import yaml

    read: dict[str, Any] = yaml.safe_load(manifest.read_text())
    return read
