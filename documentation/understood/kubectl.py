"""kubectl commands: its help lists command and flags, kinds exist, and names of ours are correct."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from documentation.understood import ours
from documentation.understood.shell import ANYTHING, Misunderstood
from gpushare.api import names
from gpushare_playground.apiserver.kinds.resources import Registry

_HELP_S: Final = 20.0
_PLUGIN: Final = ["inspect", "cgpu"]
#: As kubectl's help lists the flags of a command.
_FLAG: Final = re.compile(r"^ +(?:(-\w), )?(--[\w-]+)=(.*):$", re.MULTILINE)
_USAGE: Final = re.compile(r"^ +kubectl ((?:[a-z-]+ ?)+)(.*)$", re.MULTILINE)
#: Prefixes of our names, which are in ``api.names`` or in a chart.
_KEYS: Final = re.compile(r"(?:gpushare\.dev|ack\.node\.gpu|ack\.gpushare|aliyun\.com)[\w./-]*")
_CHART_NAMES: Final = re.compile(r"(?:gpushare|ack)-[a-z-]+")
_PART: Final = "app.kubernetes.io/name"
#: Commands whose first word names a kind, or kinds, or ``KIND/NAME``; the others name none, or may leave it out.
_OF_KINDS: Final = frozenset(
    {"get", "describe", "delete", "edit", "explain", "label", "annotate", "patch", "scale"}
)
#: Commands that have commands.
_GROUPS: Final = frozenset({"auth", "config", "rollout", "top", "create", "set", "certificate", "plugin"})
_GROUPS_WITHIN: Final = frozenset({("create", "secret"), ("create", "service")})
#: Kinds that pages name and that are missing in a playground until they are installed.
_MORE_KINDS: Final = {
    "elasticquotatree": "elasticquotatrees.scheduling.sigs.k8s.io",
    "resourcepolicy": "resourcepolicies.scheduling.alibabacloud.com",
    "validatingadmissionpolicy": "validatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicy": "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "networkpolicy": "networkpolicies.networking.k8s.io",
    "validatingwebhookconfiguration": "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "mutatingwebhookconfiguration": "mutatingwebhookconfigurations.admissionregistration.k8s.io",
}


@dataclass(frozen=True, slots=True)
class Verb:
    """A command of kubectl's: its words, the flags that it has, those of them that take a value, what follows it."""

    words: tuple[str, ...]
    flags: frozenset[str]
    valued: frozenset[str]
    follows: str


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless kubectl would take the words."""
    flags, words = _leading(words)
    if not words:
        return
    if words[:2] == _PLUGIN:
        ours.inspect(words[2:], project)
        return
    verb = _verb(words)
    arguments = words[len(verb.words) :]
    plain = _plain(verb, [*flags, *arguments])
    if arguments and not plain and verb.words[0] in _OF_KINDS and not _names_objects(arguments):
        raise Misunderstood(f"kubectl {words[0]}: of what? Name a kind, or write …")
    if plain and verb.words[0] in _OF_KINDS and plain[0] != ANYTHING:
        kinds, _, _ = plain[0].lower().partition("/")
        for kind in kinds.split(","):
            if kind.split(".")[0] not in _kinds() and kind not in _kinds():
                raise Misunderstood(f"there is no kind {kind}")
    _ours(plain, arguments, project)


def _leading(words: list[str]) -> tuple[list[str], list[str]]:
    """The flags before the command, and the rest."""
    flags = list[str]()
    while words and words[0].startswith("-"):
        taken = 1 if "=" in words[0] or words[0] in _global()[0] - _global()[1] else 2
        flags, words = [*flags, *words[:taken]], words[taken:]
    return flags, words


def _plain(verb: Verb, arguments: list[str]) -> list[str]:
    """The words that are no flags; raises ``Misunderstood`` for a flag that there is not."""
    known, valued = verb.flags | _global()[0], verb.valued | _global()[1]
    plain = list[str]()
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return plain
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        name, has_value, _ = word.partition("=")
        short = name[:2]
        if not name.startswith("--") and short in valued and len(name) > 2:
            name, has_value = short, "="
        if name not in known:
            raise Misunderstood(f"kubectl {' '.join(verb.words)} has no flag {name}")
        if name in valued and not has_value and next(rest, None) is None:
            raise Misunderstood(f"kubectl {' '.join(verb.words)} {name} needs a value")
    return plain


def _names_objects(arguments: list[str]) -> bool:
    """Whether flags name the object."""
    return any(
        word.split("=")[0] in ("-f", "--filename", "-k", "--raw", "-h", "--help") for word in arguments
    )


def _verb(words: list[str]) -> Verb:
    own = tuple(word for word in words[:2] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-"))
    found = _asked(tuple(words[:3])) if own in _GROUPS_WITHIN and len(words) > len(own) else None
    found = found or (_asked(own) if len(own) == 2 and own[0] in _GROUPS else None)
    found = found or _asked(own[:1])
    if found is None:
        raise Misunderstood(f"kubectl has no command {' '.join(words[:2])}")
    more = words[len(found.words) :]
    if found.follows.startswith("SUBCOMMAND") and more and not more[0].startswith("-"):
        raise Misunderstood(f"kubectl {' '.join(found.words)} has no command {more[0]}")
    return found


@cache
def _asked(command: tuple[str, ...]) -> Verb | None:
    """kubectl's help on a command; ``None`` if there is no such command."""
    if not command:
        return None
    code, said = _help(*command, "--help")
    usage = _USAGE.search(said[said.find("\nUsage:") :])
    if code or usage is None or tuple(usage[1].split())[: len(command)] != command:
        return None
    flags, valued = _flags(said)
    return Verb(command, flags, valued, usage[2].strip())


@cache
def _global() -> tuple[frozenset[str], frozenset[str]]:
    flags, valued = _flags(_help("options")[1])
    return flags | {"-h", "--help"}, valued


def _flags(said: str) -> tuple[frozenset[str], frozenset[str]]:
    known, valued = set[str](), set[str]()
    for short, long, default in _FLAG.findall(said):
        both = {one for one in (short, long) if one}
        known |= both
        if default not in ("true", "false"):
            valued |= both
    return frozenset(known), frozenset(valued)


def _help(*words: str) -> tuple[int, str]:
    beside = Path(sys.executable).with_name("kubectl")
    program = str(beside) if beside.exists() else shutil.which("kubectl")
    if program is None:
        raise Misunderstood("there is no kubectl to ask")
    ran = subprocess.run([program, *words], capture_output=True, text=True, timeout=_HELP_S, check=False)
    return ran.returncode, ran.stdout


@cache
def _kinds() -> dict[str, str]:
    """What a kind may be called → its name in small letters."""
    found = {"all": "all"}
    for resource in Registry():
        found |= dict.fromkeys((resource.singular, resource.plural, *resource.short_names), resource.singular)
    for singular, plural in _MORE_KINDS.items():
        found |= dict.fromkeys((singular, plural.split(".")[0], plural), singular)
    return found


@cache
def _names() -> frozenset[str]:
    return frozenset(value for value in vars(names).values() if isinstance(value, str))


@cache
def _in_charts(project: Path) -> frozenset[tuple[str, str]]:
    """(kind, name) of what the charts make, and (empty, name) of the parts by which their pods are labelled."""
    return frozenset(_made(project / "charts"))


def _made(charts: Path) -> Iterator[tuple[str, str]]:
    for template in charts.glob("*/templates/**/*"):
        text = template.read_text() if template.is_file() else ""
        # What a template calls its part, and names by a template of its own.
        parts = re.findall(r"\"name\" \"([\w-]+)\"", text)
        yield from (("", name) for name in parts)
        for kind, first in re.findall(r"^kind: (\w+)\nmetadata:\s*(.+)", text, re.MULTILINE):
            name = re.match(r"name: \"?([\w:.-]+)", first)
            yield from ((kind.lower(), one) for one in ([name[1]] if name else parts))
        yield from (("", name) for name in re.findall(rf"{_PART}: ([\w-]+)", text))


def _ours(plain: list[str], arguments: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` where a name would be ours, and is not."""
    for word in (part for one in arguments for part in one.split(",")):
        for key in _KEYS.findall(word):
            if key.rstrip("-") not in _names():
                raise Misunderstood(f"{key.rstrip('-')} is no name of ours")
        label, _, name = word.partition("=")
        if label == _PART and name != "x" and ("", name) not in _in_charts(project):
            raise Misunderstood(f"no chart makes pods with {word}")
    for kind, name in _objects(plain):
        if _CHART_NAMES.fullmatch(name) and (_kinds().get(kind, kind), name) not in _in_charts(project):
            raise Misunderstood(f"no chart makes a {kind} {name}")


def _objects(plain: list[str]) -> Iterator[tuple[str, str]]:
    """(kind, name) of the named objects, as ``KIND/NAME`` or as two words."""
    for before, word in zip(["", *plain], plain, strict=False):
        kind, slash, name = word.partition("/")
        if slash:
            yield kind, name
        elif before in _kinds():
            yield before, word
