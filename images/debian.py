"""Debian packages as the lowest layer: what apt selects, unpacked without running anything of it.

Packages come from the mirrors that this machine itself uses for its release, and only if Debian signed them.
Nothing is installed into the machine and root is not needed: apt works on lists and a status file of its own.
"""

import functools
import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

from images.errors import CannotBuild

#: Debian release → the Python that it has; images are made on a machine of the same release.
PYTHON_OF = {"bookworm": "3.11"}

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Folders that debs still fill though they are links on every Debian since 12.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
#: What only people, package tools or compilers read. Copyright notices stay: they must travel with the files.
_DROPPED = re.compile(
    r"usr/share/(man|info|locale|lintian|bug|menu|doc-base|gcc|perl5|bash-completion|pixmaps|applications|binfmts"
    r"|readline|base-files|gdb|python3|debianutils)(/|$)"
    r"|usr/share/doc/[^/]+/.*(?<!/copyright)$"
    r"|usr/lib/[^/]*/(gconv|audit|engines-3)(/|$)"
    r"|(boot|home|media|mnt|opt|srv|var|usr/(games|src|include|local|sbin))(/|$)"
    r"|usr/lib/python3\.\d+/(test|turtle\.py|turtledemo|pydoc_data|idlelib)(/|$)"
    r"|etc/(init\.d|cron.*|logrotate\.d|update-motd\.d|default|profile.*|skel|motd|issue.*|dpkg|alternatives|terminfo)(/|$)"
    r"|.*/__pycache__(/|$)"
)


@dataclass(frozen=True, slots=True)
class Package:
    """One Debian package: its file, the digest of that file, and the fields of its control file."""

    deb: Path
    sha256: str
    control: str
    name: str
    version: str
    architecture: str
    source: str
    homepage: str


def release(os_release: Path = Path("/etc/os-release")) -> str:
    """This machine's release, such as ``bookworm``; raises :class:`CannotBuild` where it is none of ours."""
    lines = [line.partition("=") for line in os_release.read_text().splitlines()]
    said = {key: value.strip('"') for key, _, value in lines}
    name = said.get("VERSION_CODENAME", "")
    if said.get("ID") != "debian" or name not in PYTHON_OF:
        raise CannotBuild(
            f"images are made from Debian {' or '.join(PYTHON_OF)} packages and this machine is"
            f" {said.get('PRETTY_NAME', 'none')}; build images/Containerfile with podman, buildah or docker instead"
        )
    return name


def fetch(names: Sequence[str], left_out: Sequence[str], cache: Path) -> list[Package]:
    """Download ``names`` with all that they depend on, but for ``left_out``, into ``cache``; sorted by name.

    Takes the newest versions that the mirrors have. Raises :class:`CannotBuild` with apt's own words.
    """
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise CannotBuild(f"{program} is missing: this builder is for Debian; see images/Containerfile")
    config = _updated(cache)
    selected = _apt(config, "install", "--simulate", *names)
    # Such as "Inst libgcc-s1 (12.2.0-14 Debian:12.11/stable [amd64])".
    chosen = re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", selected, re.MULTILINE)
    _apt(config, "install", "--yes", "--download-only", *names)
    return [
        read(cache / "archives" / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb")
        for name, version, architecture in sorted(chosen)
        if name not in left_out
    ]


def unpack(packages: Sequence[Package], root: Path) -> None:
    """Put the packages' files below ``root``, with merged /usr, and their records where scanners look for them."""
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        sums = sorted(_files_of(package, root))
        record = root / "var/lib/dpkg/status.d" / package.name
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f"{package.control.rstrip()}\nStatus: install ok installed\n")
        record.with_name(f"{package.name}.md5sums").write_text("".join(f"{line}\n" for line in sums))
    for name in _MERGED:
        if not any((root / "usr" / name).iterdir()):
            (root / "usr" / name).rmdir()
            (root / name).unlink()


def _files_of(package: Package, root: Path) -> Iterator[str]:
    """Extract one package; yields ``md5  path`` of each file that was kept."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package.deb], stdout=subprocess.PIPE) as running,
        tarfile.open(fileobj=running.stdout, mode="r|") as archive,
    ):
        for member in archive:
            name = str(PurePosixPath(member.name))
            where = root / _merged(name)
            if name in {".", *_MERGED} or _DROPPED.match(name):
                continue
            if member.isdir():
                where.mkdir(parents=True, exist_ok=True)
                continue
            where.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                where.symlink_to(member.linkname)
            elif member.isfile() and (content := archive.extractfile(member)):
                data = content.read()
                where.write_bytes(data)
                where.chmod(0o755 if member.mode & 0o100 else 0o644)
                yield f"{hashlib.md5(data).hexdigest()}  {where.relative_to(root)}"
            else:
                raise CannotBuild(f"{package.name}: {name} is of a kind that this builder does not know")
    if running.returncode:
        raise CannotBuild(f"dpkg-deb cannot read {package.deb}; remove it and build again")


def _merged(name: str) -> str:
    """Where a file of a deb lies on a system whose /bin, /lib and so on are links into /usr."""
    return f"usr/{name}" if name.partition("/")[0] in _MERGED else name


def read(deb: Path) -> Package:
    """What a ``.deb`` says of itself."""
    control = subprocess.run(["dpkg-deb", "-f", deb], check=True, capture_output=True, text=True).stdout
    fields = Parser().parsestr(control)
    return Package(
        deb=deb,
        sha256=hashlib.sha256(deb.read_bytes()).hexdigest(),
        control=control,
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        source=(fields["Source"] or fields["Package"]).partition(" ")[0],
        homepage=fields["Homepage"] or "",
    )


@functools.cache
def _updated(cache: Path) -> Path:
    """Write apt's configuration for ``cache`` and fetch its lists, once a process; returns the configuration."""
    cache = cache.resolve()
    for name in ("state", "lists/partial", "archives/partial"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    (cache / "status").write_text("")
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    (cache / "sources.list").write_text("".join(f"deb {signed}{one}\n" for one in mirrors()))
    settings = {
        "Dir::Etc::SourceList": cache / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": cache / "state",
        "Dir::State::Lists": cache / "lists",
        "Dir::State::status": cache / "status",
        "Dir::Cache": cache,
        "Dir::Cache::Archives": cache / "archives",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        # The status file is empty, and what Debian calls essential serves its scripts, which never run here.
        "pkgCacheGen::Essential": "none",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
        "Debug::NoLocking": "true",
    }
    config = cache / "apt.conf"
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    _apt(config, "update")
    return config


def mirrors() -> list[str]:
    """``URI release main`` for each of Debian's own sources of this machine, as in ``sources.list``."""
    ours = release()
    listed = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = {line for line in listed.splitlines() if re.fullmatch(rf"\S+ {ours}\S* main", line)}
    if not found:
        raise CannotBuild(
            f"no apt source of this machine has a 'main' section for {ours}; add Debian's to its sources"
        )
    return sorted(found)


def _apt(config: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["apt-get", "-q", *arguments],
        check=False,
        env={"APT_CONFIG": str(config), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise CannotBuild(f"apt-get {' '.join(arguments)} fails: {done.stderr.strip()}")
    return done.stdout
