"""Completion of the command line in bash, zsh and fish, and for kubectl's own completion of ``kubectl inspect cgpu``.

All of them call ``kubectl-inspect-cgpu __complete WORDS…`` (the last word is being typed), which prints lines ``WORD<tab>DESCRIPTION``.
kubectl runs a program named ``kubectl_complete-inspect-cgpu``, which makes the same call.
"""

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from gpushare.inspect import arguments
from gpushare.inspect.errors import UsageError

_LIST_TIMEOUT_S: Final = 3.0
SHELLS: Final = ("bash", "zsh", "fish", "kubectl")
#: All flags of this command, and the most used of kubectl's.
FLAGS: Final = {
    "--details": "a row per pod; with --why the result for every node",
    "--output": "wide, json or yaml",
    "--watch": "keep running, and refresh on every change",
    "--interval": "refresh interval of --watch and --top, in seconds",
    "--fragmentation": "pending pods, and the moves that would admit them",
    "--why": "the scheduler's decision about a pod",
    "--pending": "pending pods, each with reason and suggestion",
    "--pods": "pods on GPUs: allocated and used",
    "--top": "the same, live",
    "--scheduler": "the Service of the scheduler",
    "--recommend": "requests recommended from usage history",
    "--headroom": "percent added to the usage",
    "--min-history": "minimum history of a pod",
    "--prometheus": "source of usage, instead of the node agents",
    "--window": "length of the usage history",
    "--config": "a file with persistent settings",
    "--namespace": "pods of this namespace",
    "--all": "nodes of other device plugins, too",
    "--all-namespaces": "pods of all namespaces",
    "--help": "usage",
    "--context": "of the kubeconfig",
    "--kubeconfig": "a file",
}
_SHORT_NAMES: Final = {"-o": "--output", "-n": "--namespace", "-s": "--server"}

_BASH: Final = """\
# bash completion for kubectl-inspect-cgpu; kubectl's own asks kubectl_complete-inspect-cgpu.
_kubectl_inspect_cgpu() {
    local line word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    # bash takes --flag=value apart.
    local words=() part
    for part in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $part == = && ${#words[@]} -gt 0 ]]; then words[${#words[@]}-1]+==
        elif [[ ${#words[@]} -gt 0 && ${words[${#words[@]}-1]} == --*= ]]; then words[${#words[@]}-1]+=$part
        else words+=("$part"); fi
    done
    local typed=${words[${#words[@]}-1]-}
    while IFS=$'\\t' read -r line _; do
        [[ $typed == --*=* ]] && line=${line#"${typed%%=*}="}
        [[ $line ]] && COMPREPLY+=("$line")
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -F _kubectl_inspect_cgpu kubectl-inspect-cgpu kubectl-inspect_cgpu
"""
_ZSH: Final = """\
#compdef kubectl-inspect-cgpu kubectl-inspect_cgpu
# zsh completion for kubectl-inspect-cgpu; kubectl's own asks kubectl_complete-inspect-cgpu.
_kubectl_inspect_cgpu() {
    local line name
    local -a found open
    for line in ${(f)"$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        name=${line%%$'\\t'*}
        name="${name//:/\\\\:}:${line#*$'\\t'}"
        if [[ $line == *=$'\\t'* ]]; then open+=("$name"); else found+=("$name"); fi
    done
    _describe 'kubectl inspect cgpu' found -- open -S ''
}
if [[ $funcstack[1] == _kubectl_inspect_cgpu ]]; then
    _kubectl_inspect_cgpu "$@"
else
    compdef _kubectl_inspect_cgpu kubectl-inspect-cgpu kubectl-inspect_cgpu
fi
"""
_FISH: Final = """\
# fish completion for kubectl-inspect-cgpu; kubectl's own asks kubectl_complete-inspect-cgpu.
function __kubectl_inspect_cgpu
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c kubectl-inspect-cgpu -f -a '(__kubectl_inspect_cgpu)'
complete -c kubectl-inspect_cgpu -f -a '(__kubectl_inspect_cgpu)'
"""
_KUBECTL: Final = """\
#!/bin/sh
# kubectl asks this program for completion of `kubectl inspect cgpu`: put it on PATH as kubectl_complete-inspect-cgpu.
kubectl-inspect-cgpu __complete "$@" && echo :4
"""
_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH, "kubectl": _KUBECTL}


def script(shells: Sequence[str]) -> str:
    """The output of ``completion SHELL``; raises ``UsageError``."""
    if len(shells) != 1 or shells[0] not in _SCRIPTS:
        raise UsageError("", f"completion: name a shell: {', '.join(SHELLS)}")
    return _SCRIPTS[shells[0]]


def completed(words: Sequence[str]) -> str:
    """Lines ``WORD<tab>DESCRIPTION`` for the last of ``words``, which is being typed."""
    *before, typed = words or ("",)
    return "".join(
        f"{word}\t{description}\n"
        for word, description in _candidates(before, typed)
        if word.startswith(typed)
    )


def _candidates(before: Sequence[str], typed: str) -> "list[tuple[str, str]]":
    flag, equals, _ = typed.partition("=")
    if equals and flag.startswith("--"):
        return [(f"{flag}={value}", description) for value, description in _values(flag, before)]
    last = _SHORT_NAMES.get(before[-1], before[-1]) if before else ""
    if [word for word in before if word not in arguments.SWITCHES][-1:] == ["--why"]:
        last = "--why"  # switches may stand between it and the pod
    if last in arguments.VALUED and last.startswith("--"):
        return _values(last, before)
    if typed.startswith("-"):
        valued = arguments.VALUED
        return [(name + ("=" if name in valued else ""), description) for name, description in FLAGS.items()]
    if before and before[0] == "completion":
        return [(shell, "") for shell in SHELLS] if len(before) == 1 else []
    words = [("completion", "a script for bash, zsh or fish")] if not before else []
    return words + [(node, "node") for node in _listed(before, "nodes")]


def _values(flag: str, before: Sequence[str]) -> "list[tuple[str, str]]":
    if flag == "--output":
        return [(form, "") for form in arguments.FORMATS]
    if flag == "--why":
        return [(pod, "pod") for pod in _listed(before, "pods")]
    if flag == "--namespace":
        return [(name, "namespace") for name in _listed(before, "namespaces")]
    if flag == "--scheduler":
        return [(arguments.SCHEDULER, "the chart's")]
    return []


def _listed(before: Sequence[str], kind: str) -> list[str]:
    """Names of the cluster's objects of a kind; none where kubectl fails or takes too long."""
    command = [os.environ.get("KUBECTL") or "kubectl", "get", kind, "-o", "name", "--request-timeout=2s"]
    for number, word in enumerate(before):
        name, equals, value = word.partition("=")
        name = _SHORT_NAMES.get(name, name)
        value = value if equals else (before[number + 1] if number + 1 < len(before) else "")
        if name in ("--context", "--kubeconfig") or (name == "--namespace" and kind == "pods"):
            command.append(f"{name}={value}")
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=_LIST_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.partition("/")[2] for line in result.stdout.decode(errors="replace").splitlines()]
