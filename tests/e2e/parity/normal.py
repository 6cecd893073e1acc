"""Removes from kubectl's output what differs between any two clusters: generated names, times, addresses,
accounts.
"""

import json
import re
from typing import Any, Final

from tests.e2e.parity.steps import Step

#: Fields of objects that contain when, who or which one, not what.
_IDENTITY: Final = frozenset(
    [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "lastTransitionTime",
        "lastUpdateTime",
        "lastProbeTime",
        "lastHeartbeatTime",
        "startTime",
        "startedAt",
        "finishedAt",
        "completionTime",
        "deletionTimestamp",
        "time",
        "timeAdded",
        "containerID",
        "imageID",
        "podIP",
        "podIPs",
        "hostIP",
        "hostIPs",
        "Port",
        "gpushare.dev/agent-port",
    ]
)
_MARK: Final = re.compile(
    r'("(?:ALIYUN_COM_GPU_MEM_ASSIGNED|scheduler\.framework\.gpushare\.assigned)": ?)"\w+"'
)
_LETTERS: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_ACCOUNT: Final = "kube-api-access-"
_PATTERNS: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        # The real API server mounts the service account's token into every pod; the embedded one has no accounts.
        (
            r"Mounts:\n\s+/var/run/secrets/kubernetes\.io/serviceaccount from kube-api-access-\w{5} \(ro\)",
            "Mounts:  <none>",
        ),
        (
            r"Volumes:\n\s+kube-api-access-\w{5}:\n(\s+(Type|TokenExpirationSeconds|ConfigMapName|Optional|DownwardAPI):.*\n)+",
            "Volumes:  <none>\n",
        ),
        # kubectl's own, occasionally, where an event arrives while it ends its watch.
        (r'(?m)^I\d{4} .*reflector\.go:\d+\] "Warning: watch ended with error".*context canceled.*\n', ""),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
        (r"\b[0-9a-f]{64}\b", "CONTAINER"),
        (r"(gpushare\.dev/agent-port)=\d+", r"\1=PORT"),
        (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"\b\d{4}-\d\d-\d\d [\d:.]+ [+-]\d{4}", "TIME"),
        (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]+ [+-]\d{4}", "TIME"),
        (r"(?<![\d.])127\.\d+\.\d+\.\d+(:\d+)?\b", "ADDRESS"),
        (r"/(LIVE|MERGED)-\d+/", r"/\1/"),
        (r'resourceVersion: "\d+"', "resourceVersion"),
        (rf"-{_LETTERS}{{8,10}}-{_LETTERS}{{5}}\b", "-HASH-SUFFIX"),
        (rf"\b(work|broken)-{_LETTERS}{{5}}\b", r"\1-SUFFIX"),
        (rf"\b(web|db)-{_LETTERS}{{8,10}}\b", r"\1-HASH"),
        (r"\b(pod-template-hash|controller-revision-hash)([=:\" ]+)[a-z0-9-]+", r"\1\2HASH"),
        (r"(?<![\w.-])(\d+[dhms])+(?![\w.-])( ago)?( \(x\d+ over [\w]+\))?", "AGE"),
        (r"<invalid>|<unknown>", "AGE"),
        (r'"?\b\d{18,19}\b"?', "NANOSECONDS"),
        # Go's comparison of the two specs, which only Go can make.
        (r"\n@@[\s\S]*", ""),
    )
)


def normal(step: Step, text: str) -> str:
    """The output with everything specific to this cluster replaced by placeholders."""
    stripped = text.strip()
    if step.ended:
        stripped = _MARK.sub(r'\1"MARK"', stripped)
    if stripped.startswith(("{", "[")):
        try:
            return json.dumps(_plain(json.loads(stripped)), indent=1, sort_keys=True)
        except ValueError:
            pass
    lines = [re.sub(r"\s{2,}|\t", "  ", line).strip() for line in _worded(stripped).splitlines()]
    if step.last:
        lines = lines[-1:]
    return "\n".join(sorted(set(lines)) if step.unordered else lines)


def _worded(text: str) -> str:
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    return text


def _plain(value: Any, name: str = "") -> Any:
    if name in _IDENTITY:
        return name.upper()
    if name == "pod-template-hash":
        return "HASH"
    if isinstance(value, dict):
        plain = {key: _plain(each, key) for key, each in value.items()}
        # Go writes a struct that holds nothing as null or {}.
        empty = (None, {}, [], "LASTPROBETIME")
        return {key: each for key, each in plain.items() if each not in empty and key != "managedFields"}
    if isinstance(value, list):
        several = [_plain(each) for each in value if not _of_account(each)]
        return sorted(several, key=json.dumps) if name == "conditions" else several
    return _worded(value) if isinstance(value, str) else value


def _of_account(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("name", "")).startswith(_ACCOUNT)
