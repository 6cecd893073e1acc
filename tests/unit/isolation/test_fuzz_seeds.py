"""Seeds of the fuzzers and inputs that they found, each replayed once under sanitizers. ``make fuzz`` continues from them."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.building import ROOT, make

FUZZ = ROOT / "tests" / "fuzz"
TARGETS = sorted(path.name.removesuffix("_fuzz.c") for path in FUZZ.glob("*_fuzz.c"))


@cache
def built() -> Path:
    made = ROOT / "build" / "fuzz"
    make("tests/fuzz", "replay", made / "lock")
    return made / "replay"


@pytest.mark.parametrize("target", TARGETS)
def test_every_stored_input_passes(target: str) -> None:
    seeds = FUZZ / "corpus" / target
    replayed = subprocess.run(
        [built() / target, seeds], capture_output=True, text=True, timeout=100, check=False
    )
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == f"{len(list(seeds.iterdir()))} inputs\n"
    assert len(list(seeds.iterdir())) >= 4
