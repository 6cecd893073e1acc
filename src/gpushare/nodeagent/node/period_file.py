"""Quarantines and grace periods that have not ended, in a file on the node: the next agent continues them.

Times are seconds of the kernel's monotonic clock, which all processes of one boot share and which nobody can set. After a reboot the file
is ignored: the driver has initialized its GPUs again, and every container has been started again.
"""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpushare.nodeagent.driver.health import CriticalXid
from gpushare.nodeagent.isolation.watchdog.violations import OveruseState

logger = logging.getLogger(__name__)

FILE: Final = "periods.json"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Periods(msgspec.Struct, frozen=True, omit_defaults=True):
    """By GPU (UUID) its last critical XID and since when it does not respond; which containers are above their share, and since when some are
    to give memory back."""

    xids: Mapping[str, CriticalXid] = {}
    lost_since_s: Mapping[str, float] = {}
    overuse: tuple[OveruseState, ...] = ()
    reclaiming_since_s: Mapping[str, float] = {}


class _Stored(Periods, frozen=True, omit_defaults=True):
    boot_id: str = ""


class PeriodFile:
    """The file in ``folder``, which exists only while a period lasts. ``boot_id`` is the kernel's file that identifies this boot."""

    def __init__(self, folder: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = folder / FILE
        self._boot_id = boot_id
        self._written: Periods | None = None
        self._cleared = False
        self._reported = ""

    @property
    def there(self) -> bool:
        """Whether the file exists."""
        return self._path.exists()

    def read(self) -> Periods:
        """What an agent wrote since the node was booted; nothing if that cannot be read."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=_Stored)
            return stored if stored.boot_id == self._boot() else Periods()
        except FileNotFoundError:
            return Periods()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._report(f"{self._path} cannot be read, so quarantines and grace periods start over: {error}")
            return Periods()

    def write(self, periods: Periods) -> None:
        """Replace the file if ``periods`` have changed; never raises.

        It is not synced to disk: it has to survive the end of a process, not that of the node.
        """
        if self._cleared or periods == self._written:
            return
        try:
            if periods == Periods():
                self._path.unlink(missing_ok=True)
            else:
                self._replace(periods)
        except OSError as error:
            self._report(
                f"{self._path} cannot be written, so periods begin again when the agent restarts: {error}"
            )
            return
        self._written = periods

    def clear(self) -> None:
        """Remove it permanently, with what killed agents have left of it; never raises."""
        self._cleared = True
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            for rest in self._path.parent.glob(f".{FILE}.*"):
                rest.unlink(missing_ok=True)

    def _replace(self, periods: Periods) -> None:
        stored = _Stored(**msgspec.structs.asdict(periods), boot_id=self._boot())
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # A name of its own: an agent may still write while the next one begins to.
        new = self._path.with_name(f".{FILE}.{secrets.token_hex(8)}")
        try:
            new.touch(mode=0o600)
            new.write_bytes(msgspec.json.encode(stored))
            new.replace(self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _boot(self) -> str:
        return self._boot_id.read_text().strip()

    def _report(self, text: str) -> None:
        if text != self._reported:
            logger.warning("%s", text)
        self._reported = text
