"""The libraries as they are shipped, where a node agent puts them: whatever the environment."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.placed import OVER, WAYS, Way, must, needs_root, run
from tests.unit.fakegpu import building as fakegpu

pytestmark = needs_root


@pytest.mark.parametrize("way", WAYS)
def test_nvidia_smi_prints_the_slice(way: str, container: LimitedContainer, tmp_path: Path) -> None:
    smi = fakegpu.system_program("nvidia-smi")
    assert "/  2154MiB" in must(run(container(), Way(way), tmp_path, smi))


def test_a_process_that_died_in_its_own_pid_namespace_is_cleaned_up_after(
    container: LimitedContainer, tmp_path: Path
) -> None:
    here = container()
    dies = OVER + "import signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    # The first process of a pid namespace cannot kill itself: its child does.
    child = f"{sys.executable} -c {shlex.quote(dies)}; [ $? = 137 ]"
    for _ in range(3):
        must(run(here, Way(namespaces="-m -p -f --mount-proc"), tmp_path, "bash", "-c", child))
    must(run(here, Way(), tmp_path, sys.executable, "-c", OVER))
