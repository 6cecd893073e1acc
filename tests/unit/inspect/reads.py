"""A reader whose token is valid, for fakes of kubectl."""

from collections.abc import Sequence
from typing import Any, Self


class Reads:
    """Provides the answers."""

    def __init__(self, kubectl: Any) -> None:
        self._kubectl = kubectl

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""

    def outcomes(self, paths: Sequence[str]) -> Any:
        """As in ``Reader``."""
        return self._kubectl.start(*paths).outcomes()
