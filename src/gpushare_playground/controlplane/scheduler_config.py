"""KubeSchedulerConfiguration: ours, or the user's with what only the control plane knows filled in. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from gpushare_playground.controlplane.errors import ControlPlaneError

_API: Final = "kubescheduler.config.k8s.io/v1"
_KIND: Final = "KubeSchedulerConfiguration"


def completed(text: str, kubeconfig: str, source: str) -> str:
    """``text`` (YAML) with ``clientConnection.kubeconfig`` where it names none, and no leader election unless it asks.

    Raises ``ControlPlaneError`` naming ``source`` when it is no such configuration.
    """
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ControlPlaneError(f"{source} is no YAML: {error}") from error
    if not isinstance(given, dict) or given.get("kind") != _KIND:
        raise ControlPlaneError(f"{source} is no {_KIND}; give apiVersion {_API} and kind {_KIND}")
    connection = {"kubeconfig": kubeconfig, **(given.get("clientConnection") or {})}
    election = given.get("leaderElection") or {"leaderElect": False}
    return _written({**given, "clientConnection": connection, "leaderElection": election})


def plain(kubeconfig: str) -> str:
    """The default scheduler's."""
    return completed(_written({"apiVersion": _API, "kind": _KIND}), kubeconfig, "the default configuration")


def with_extender(
    profile: str, url: str, resources: tuple[str, ...] = (), ignored: Sequence[str] = ()
) -> str:
    """A scheduler called ``profile`` that asks the extender at ``url`` about pods with one of ``resources``; none: about all.

    Of those that are ``ignored`` it does not look at what nodes have left.
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
