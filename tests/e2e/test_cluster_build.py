"""The programs of the test cluster."""

import pytest

from tests.e2e.cluster.programs import KUBERNETES, kubernetes_version, programs


@pytest.mark.parametrize("k8s", KUBERNETES)
def test_every_program_is_pinned(k8s: str) -> None:
    for program in programs(k8s).values():
        assert (program.folder / "go.sum").is_file(), program
        assert f"\t{program.package}\n" in (program.folder / "go.mod").read_text().replace("tool ", "\t"), (
            program
        )
    assert kubernetes_version(k8s).startswith(f"v{k8s}.")
