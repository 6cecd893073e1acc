"""Commands of the pages' sentences that need what a bare machine lacks (compilers, valgrind, packages of
PyPI), typed in the checkout.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from documentation.blocks import Page
from tests.docs.doings import Doing
from tests.docs.saying import says
from tests.docs.sentences import sentences_typed_by
from tests.docs.typist import Typist
from tests.e2e.plane import CHECKOUT
from tests.patience import SLOWNESS

# It compiles and runs tests under valgrind and sanitizers: minutes, and many times that next to other work.
pytestmark = pytest.mark.timeout(3600 * SLOWNESS)

#: What is installed is in a folder of its own; that of ``pip install .`` is a copy, since pip may write
#: next to what it packs.
_READY: Final = (
    '"$PYTHON_HERE" -m venv installed',
    "mkdir copy && cd $CHECKOUT && cp --parents -r pyproject.toml README.md LICENSE lookahead scripts src $OLDPWD/copy",
)
_VENV: Final = "cd copy && PATH=$HERE/installed/bin:$PATH &&"
DOINGS: Final = (
    Doing("make -C isolation aarch64"),
    Doing("make -C isolation sanitize"),
    Doing("make sanitize", shows=("…", "… passed…", "…")),
    Doing("make valgrind", shows=("…", "… passed…", "…")),
    Doing("make fuzz", "make fuzz FUZZ_SECONDS=3", shows=("…", "description: … inputs in 3 s, …")),
    Doing("pip install .", f"{_VENV} pip install . && kubectl-inspect-cgpu --help", first=_READY),
)


@pytest.mark.parametrize("doing", DOINGS, ids=lambda doing: doing.text)
def test_the_typed_command_matches_its_sentence(doing: Doing) -> None:
    assert says(doing.text, doing.typed or doing.text)


def test_commands_in_sentences_about_the_checkout_work(tmp_path: Path) -> None:
    lines = {one.text: one for one in sentences_typed_by(__file__)}
    assert [doing.text for doing in DOINGS] == list(lines)
    # A reader's shell is not a recipe of make.
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment = {
        **shell,
        "CHECKOUT": str(CHECKOUT),
        "HERE": str(tmp_path),
        "PYTHON_HERE": sys.executable,
    }
    typist = Typist(environment, tmp_path, command_s=1200.0 * SLOWNESS)
    for doing in DOINGS:
        one = lines[doing.text]
        wrong = asyncio.run(typist.follow(Page(one.page, ()), doing.block(one.line)))
        assert not wrong, "\n\n".join(wrong)
