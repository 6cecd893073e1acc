"""KubeSchedulerConfiguration: ours, or the user's completed with what only the control plane knows. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from gpushare_playground.controlplane.errors import ControlPlaneError

_API: Final = "kubescheduler.config.k8s.io/v1"
_KIND: Final = "KubeSchedulerConfiguration"


def completed(text: str, kubeconfig: str, source: str) -> str:
    """``text`` (YAML) with ``clientConnection.kubeconfig`` if it has none, and no leader election unless it sets it.

    Raises ``ControlPlaneError`` naming ``source`` if it is not such a configuration.
    """
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ControlPlaneError(f"{source} is no YAML: {error}") from error
    if not isinstance(config, dict) or config.get("kind") != _KIND:
        raise ControlPlaneError(f"{source} is no {_KIND}; give apiVersion {_API} and kind {_KIND}")
    connection = {"kubeconfig": kubeconfig, **(config.get("clientConnection") or {})}
    election = config.get("leaderElection") or {"leaderElect": False}
    return _written({**config, "clientConnection": connection, "leaderElection": election})


def plain(kubeconfig: str) -> str:
    """That of the default scheduler."""
    return completed(_written({"apiVersion": _API, "kind": _KIND}), kubeconfig, "the default configuration")


def with_extender(
    profile: str, url: str, resources: tuple[str, ...] = (), ignored: Sequence[str] = ()
) -> str:
    """A scheduler called ``profile`` that calls the extender at ``url`` for pods with one of ``resources``; empty: for all pods.

    For the ``ignored`` ones it does not check what nodes have free.
    """
    extender: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 5,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
    }
    if resources:
        extender["managedResources"] = [{"name": name} for name in resources]
    fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": list(ignored)}}
    profiles = [{"schedulerName": profile, **({"pluginConfig": [fit]} if ignored else {})}]
    return _written({"apiVersion": _API, "kind": _KIND, "profiles": profiles, "extenders": [extender]})


def _written(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False)
