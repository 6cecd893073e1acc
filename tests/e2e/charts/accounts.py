"""ServiceAccounts of the charts, as a process outside of a pod uses them."""

import json
from pathlib import Path

import yaml

from tests.e2e.asking import Commands


def kubeconfig_of(commands: Commands, account: str, namespace: str, path: Path) -> Path:
    """A kubeconfig with a token of the ServiceAccount, written to ``path``."""
    token = commands.typed("kubectl", "create", "token", account, "-n", namespace, "--duration", "1h").strip()
    config = yaml.safe_load(commands.kubeconfig.read_text())
    config["users"] = [{"name": "account", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"] |= {"user": "account", "namespace": namespace}
    path.write_text(json.dumps(config))
    return path
