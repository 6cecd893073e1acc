"""Another isolation library for the same workloads, described only by its environment."""

import shlex
from dataclasses import dataclass
from pathlib import Path

#: Placeholders in assignments; each container has its own values.
PLACEHOLDERS = ("memory_mib", "percent", "folder")
#: HAMi-core's variables: CUDA_REDIRECT is the path of its library, without it `dlsym` finds the driver's functions.
_HAMI_CORE = (
    "HAMi-core:LD_PRELOAD={library} CUDA_REDIRECT={library} LIBCUDA_LOG_LEVEL=0 CUDA_DEVICE_MEMORY_LIMIT={{memory_mib}}m "
    "CUDA_DEVICE_SM_LIMIT={{percent}} CUDA_DEVICE_MEMORY_SHARED_CACHE={{folder}}/cache"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A library loaded through the environment."""

    name: str
    assignments: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Peer":
        """Parse ``NAME:VARIABLE=VALUE …``, quoted as for a shell."""
        name, colon, words = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"PEER={text!r}: no name; write NAME:VARIABLE=VALUE …")
        pairs = [word.partition("=") for word in shlex.split(words)]
        if not pairs or not all(variable and equals for variable, equals, _ in pairs):
            raise ValueError(f"PEER={text!r}: after the name come assignments, VARIABLE=VALUE …")
        peer = cls(name.strip(), tuple((variable, value) for variable, _, value in pairs))
        environment = peer.environment(Path("/folder"), memory_mib=1, percent=None)
        for library in environment.get("LD_PRELOAD", "").replace(":", " ").split():
            # The loader would continue without it, and measure the bare driver.
            if "/" in library and not Path(library).is_file():
                raise ValueError(
                    f"PEER={text!r}: LD_PRELOAD names {library}, which is not a file; build it first"
                )
        return peer

    @classmethod
    def hami_core(cls, folder: Path) -> "Peer":
        """HAMi-core with its ``libvgpu.so`` in the folder."""
        return cls.parse(_HAMI_CORE.format(library=shlex.quote(str(folder.resolve() / "libvgpu.so"))))

    def environment(self, folder: Path, *, memory_mib: int, percent: int | None) -> dict[str, str]:
        """The environment of a program in a container; unlimited compute is 100 percent."""
        values = {"memory_mib": memory_mib, "percent": percent or 100, "folder": folder}
        try:
            return {variable: value.format_map(values) for variable, value in self.assignments}
        except (KeyError, ValueError, IndexError) as error:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"PEER={self.name}: {error} in braces; known are {known}") from error
