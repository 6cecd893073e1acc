"""The local program of an image name.

A description file is TOML with one or more ``[[image]]`` tables:

``names``     image names; ``*`` matches anything, a name without a tag means ``:latest``
``about``     one line on what it is
``command``   default program and its arguments (optional), as ``ENTRYPOINT``
``args``      default arguments (optional), as ``CMD``
``workdir``   default working directory inside the container (default ``/``)
``env``       environment (table of strings)
``files``     table: path inside the container → file, relative to the description
``programs``  table: command name → command line that it runs; ``{python}`` is our interpreter and
              ``{here}`` the description's folder

Files are linked into the container's own folder and commands are first on its ``PATH``.
"""

import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from gpushare_playground.images.errors import MalformedImage, UnknownImage

DESCRIBED: Final = Path(__file__).parent / "described"


@dataclass(frozen=True, slots=True)
class Image:
    """A local stand-in for a container image; see the module for the fields."""

    names: tuple[str, ...]
    about: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def furnish(self, rootfs: Path) -> Path:
        """Create the container's folder: its files as links, its commands as scripts.

        Returns the folder of the commands, which belongs first on ``PATH``. Can be repeated.
        """
        for inside, file in self.files.items():
            path = inside_path(rootfs, inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_symlink():
                path.symlink_to(file)
        inside_path(rootfs, self.workdir).mkdir(parents=True, exist_ok=True)
        commands = rootfs / "bin"
        commands.mkdir(parents=True, exist_ok=True)
        for name, line in self.programs.items():
            write_program(commands / name, line)
        return commands


class _Described(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    about: str = ""
    command: list[str] = []
    args: list[str] = []
    workdir: str = "/"
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    programs: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    image: list[_Described]


def inside_path(rootfs: Path, inside: str) -> Path:
    """The path on this machine of the path ``inside`` a container; ``..`` cannot leave ``rootfs``."""
    parts: list[str] = []
    for part in inside.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return rootfs.joinpath(*parts)


def write_program(path: Path, line: Iterable[str]) -> None:
    """Write ``path`` as a script that becomes the command ``line``, followed by its own arguments."""
    text = f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n'
    if path.is_symlink() or not path.exists() or path.read_text() != text:
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def normalised(reference: str) -> str:
    """An image name in the form in which names are compared: registry defaults and digest removed, tag added.

    ``docker.io/library/busybox`` is ``busybox:latest``; ``a/b@sha256:…`` is ``a/b:latest``.
    """
    name = reference.partition("@")[0]
    name = name.removeprefix("index.").removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class Registry:
    """All images: ours, and those described in ``folders`` (which take precedence).

    Raises ``MalformedImage`` for a description that cannot be read. ``reload`` reads the folders again.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._folders = tuple(folders)
        self.reload()

    def reload(self) -> None:
        """Read every description again, so that an image added meanwhile is known."""
        images: list[Image] = []
        for folder in (*self._folders, DESCRIBED):
            if not folder.is_dir():
                raise MalformedImage(str(folder), "is no folder; name one that holds *.toml descriptions")
            for file in sorted(folder.glob("*.toml")):
                images += read_description(file)
        self._images = tuple(images)

    @property
    def known(self) -> tuple[str, ...]:
        """Every name and pattern, in the order in which they are tried."""
        return tuple(name for image in self._images for name in image.names)

    def find(self, reference: str) -> Image:
        """The image of that name; raises ``UnknownImage`` with the list of existing ones."""
        wanted = normalised(reference)
        for image in self._images:
            for name in image.names:
                if fnmatchcase(wanted, name if ":" in name.rpartition("/")[2] else f"{name}:latest"):
                    return image
        raise UnknownImage(reference, self.known)


def read_description(file: Path) -> list[Image]:
    """The images of one TOML file; raises ``MalformedImage`` naming it."""
    try:
        with file.open("rb") as stream:
            described = msgspec.convert(tomllib.load(stream), _File)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise MalformedImage(
            str(file), f"cannot be read as an image description ({error}); see the files in {DESCRIBED}"
        ) from None
    return [_image(one, file) for one in described.image]


def _image(described: _Described, file: Path) -> Image:
    here = file.parent.resolve()
    if not described.names:
        raise MalformedImage(str(file), "an image has no name; give names = [...]")
    files = {inside: here / name for inside, name in described.files.items()}
    for inside, path in files.items():
        if not path.is_file():
            raise MalformedImage(str(file), f"{inside} is to be {path}, which is no file")
    places: dict[str, Any] = {"python": sys.executable, "here": str(here)}
    programs = {}
    for name, line in described.programs.items():
        if "/" in name or not name:
            raise MalformedImage(str(file), f"{name!r} is no name of a command")
        try:
            programs[name] = tuple(part.format(**places) for part in shlex.split(line))
        except (ValueError, KeyError, IndexError) as error:
            raise MalformedImage(str(file), f"the command line of {name} is broken: {error}") from None
        if not programs[name]:
            raise MalformedImage(str(file), f"{name} has an empty command line")
    return Image(
        tuple(described.names),
        described.about,
        tuple(described.command),
        tuple(described.args),
        described.workdir,
        described.env,
        files,
        programs,
    )
