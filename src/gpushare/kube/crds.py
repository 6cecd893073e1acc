"""The CustomResourceDefinitions of ResourcePolicy and ElasticQuotaTree: copies of those in chart ack-co-scheduler."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent / "kinds"
#: Name of the definition → manifest.
MANIFESTS: Final = {
    "resourcepolicies.scheduling.alibabacloud.com": _FOLDER / "resourcepolicies.yaml",
    "elasticquotatrees.scheduling.sigs.k8s.io": _FOLDER / "elasticquotatree.yaml",
}


def definition(name: str) -> dict[str, Any]:
    """This release's CustomResourceDefinition of that name; raises ``KeyError``."""
    return deepcopy(_read(MANIFESTS[name]))


@cache
def _read(manifest: Path) -> dict[str, Any]:
    # Large, and most callers need only a path or a name.
    import yaml

    parsed: dict[str, Any] = yaml.safe_load(manifest.read_text())
    return parsed
