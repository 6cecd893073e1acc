"""Namespaces whose gangs kept room in vain: how long they keep none, and on which terms then. Pure: times are handed in, in seconds."""

from typing import Final

#: How long others may have the room of a gang that did not come together, in seconds: twice as long after each time.
REST_S: Final = 10.0
MOST_REST_S: Final = 600.0
#: How long a namespace is remembered after its rest.
_REMEMBERED_S: Final = 600.0


class Rests:
    """Of each namespace, how often in a row room was kept for a gang of it in vain.

    By namespace and not by gang: whoever means to keep room from others makes another gang each time.
    """

    def __init__(self) -> None:
        self._in_vain: dict[str, tuple[int, float]] = {}

    def in_vain(self, namespace: str, now_s: float) -> float:
        """Room was kept in vain; returns until when the namespace keeps none."""
        times, _ = self._in_vain.get(namespace, (0, 0.0))
        self._in_vain[namespace] = (times + 1, now_s)
        return self.until_s(namespace)

    def until_s(self, namespace: str) -> float:
        """Until when no room is kept for gangs of the namespace; 0 where nothing speaks against it."""
        times, last_s = self._in_vain.get(namespace, (0, 0.0))
        return last_s + min(REST_S * 2.0 ** min(times - 1, 16), MOST_REST_S) if times else 0.0

    def is_wary(self, namespace: str) -> bool:
        """Whether room is kept only for gangs of which kube-scheduler has asked about every pod that needs it."""
        return namespace in self._in_vain

    def forget(self, now_s: float) -> None:
        """Forget namespaces whose last rest ended long ago."""
        for namespace in [one for one in self._in_vain if now_s > self.until_s(one) + _REMEMBERED_S]:
            del self._in_vain[namespace]
