"""The README's commands, typed as they stand, on a cluster of their own; which is then left again.

Its kubelet names what the agent offered for five minutes after the agent's end, so the last look at it is taken
when the other tests are through (``test_removal.py``).
"""

from pathlib import Path

from tests.e2e.product.conftest import Departure
from tests.e2e.product.product import CHECKOUT, INSTALLER, SCHEDULER, gpu_pod


def test_the_readme_followed_literally_works_and_helm_uninstall_keeps_pods(departure: Departure) -> None:
    product, node = departure.product, departure.node
    for command in readme_commands():
        print(f"$ {command}")
        print(product.typed(*command.replace("NODE", node).split()))
    product.offers(node, gpu_mem=15)
    product.running("app=tensorflow-mnist-share")
    assert product.row(node)[2] == "4/15"

    product.apply(gpu_pod("mine", 2, labels={"app": "mine"}))
    (pod,) = product.running("app=mine")
    product.uninstall(SCHEDULER)
    product.uninstall(INSTALLER)
    (same,) = product.running("app=mine")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    product.delete_all()
    product.label(node, None)


def readme_commands() -> list[str]:
    """The commands of the README's first block under "On a cluster"."""
    text = Path(CHECKOUT / "README.md").read_text()
    block = text.partition("## On a cluster")[2].split("```")[1]
    commands = [line for line in block.splitlines() if line]
    assert commands[0].startswith("helm install ack-ai-installer")
    return commands
