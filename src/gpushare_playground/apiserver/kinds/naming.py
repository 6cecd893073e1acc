"""New identities: UIDs, generated names, time stamps."""

import random
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_NAME_MAX: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

WallClock = Callable[[], datetime]
"""The current time, with its time zone."""

SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and"
    " end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def is_dns_label(name: str) -> bool:
    """Whether ``name`` is an RFC 1123 label of 63 characters at most."""
    return len(name) <= _NAME_MAX and _LABEL.fullmatch(name) is not None


def is_dns_subdomain(name: str) -> bool:
    """Whether ``name`` is an RFC 1123 subdomain of 253 characters at most."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def utc_now() -> datetime:
    """The wall clock in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """``2026-01-02T03:04:05Z``, as ``metav1.Time``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_uid() -> str:
    """A random UID."""
    return str(uuid.uuid4())


def generated_name(prefix: str) -> str:
    """``prefix`` with five random characters, shortened to a total of at most 63."""
    suffix = "".join(random.choices(_ALPHABET, k=_SUFFIX_LENGTH))  # noqa: S311 - a name, no secret
    return prefix[: _NAME_MAX - _SUFFIX_LENGTH] + suffix
