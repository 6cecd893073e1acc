"""``python -m images product …``: writes image archives into ``build/images``."""

import argparse
import sys
from pathlib import Path

from images import product, samples
from images.errors import CannotBuild
from images.parts import Store


def main(arguments: list[str] | None = None) -> int:
    """Build what is named; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m images", description=__doc__)
    parser.add_argument("what", choices=["all", "product", "samples"])
    parser.add_argument("--out", type=Path, default=product.PROJECT / "build" / "images")
    options = parser.parse_args(arguments)
    store = Store(options.out, lambda text: print(f"images: {text}", flush=True))
    try:
        with store.alone():
            if options.what != "samples":
                product.build(store)
            if options.what != "product":
                samples.build(store)
    except CannotBuild as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
