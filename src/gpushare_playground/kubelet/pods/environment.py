"""The command, arguments and environment with which a container's program is started.

As in the kubelet: the image's environment, then Allocate's response, then the manifest's (so the
manifest takes precedence), ``$(NAME)`` expanded in values, command and arguments.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import parse_quantity
from gpushare_playground.images.registry import Image
from gpushare_playground.kubelet.errors import StartFailed
from gpushare_playground.kubelet.podspec import Container, EnvFrom, EnvSource, EnvVar, KeySelector, Pod

SourceKind = Literal["ConfigMap", "Secret"]
#: Reads the data of a ConfigMap or Secret of a namespace; ``None`` if it does not exist.
ObjectSource = Callable[[SourceKind, str, str], Awaitable[dict[str, bytes] | None]]
_REFERENCE: Final = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))?")
_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced by its value if it has one; ``$$`` stands for a dollar."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        name = match[2]
        return match[0] if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(value, text)


def command_line(container: Container, image: Image, variables: Mapping[str, str]) -> list[str]:
    """Program and arguments: ``command`` replaces the image's and drops its default arguments, ``args`` replaces those.

    Raises ``StartFailed`` if there is nothing to run.
    """
    command = container.command or list(image.command)
    arguments = container.args or ([] if container.command else list(image.args))
    line = [expand(part, variables) for part in (*command, *arguments)]
    if not line:
        raise StartFailed(container.name, "CreateContainerError", "no command specified")
    return line


async def manifest_environment(
    pod: Pod, container: Container, addresses: tuple[str, str], source: ObjectSource
) -> dict[str, str]:
    """The variables of ``envFrom`` and ``env``; ``addresses`` are the pod's and the node's.

    Raises ``StartFailed`` (CreateContainerConfigError) for a source or key that is missing.
    """
    variables: dict[str, str] = {}
    for each in container.env_from or ():
        variables.update(await _all_of(pod, container, each, source))
    for variable in container.env or ():
        if variable.value_from is None:
            variables[variable.name] = expand(variable.value, variables)
        else:
            value = await _from_source(pod, container, variable, addresses, source)
            if value is not None:
                variables[variable.name] = value
    return variables


async def _all_of(pod: Pod, container: Container, each: EnvFrom, source: ObjectSource) -> dict[str, str]:
    variables: dict[str, str] = {}
    kinds: tuple[tuple[SourceKind, KeySelector | None], ...] = (
        ("ConfigMap", each.config_map_ref),
        ("Secret", each.secret_ref),
    )
    for kind, selector in kinds:
        if selector is not None:
            data = await source(kind, pod.metadata.namespace, selector.name)
            if data is None and not selector.optional:
                raise _missing(container, f'{kind.lower()} "{selector.name}" not found')
            variables |= {
                each.prefix + key: value.decode(errors="replace") for key, value in (data or {}).items()
            }
    return variables


async def _from_source(
    pod: Pod, container: Container, variable: EnvVar, addresses: tuple[str, str], source: ObjectSource
) -> str | None:
    origin = variable.value_from or EnvSource()
    if origin.field_ref is not None:
        return field_value(pod, container, origin.field_ref.field_path, addresses)
    if origin.resource_field_ref is not None:
        asked = origin.resource_field_ref
        return _resource_value(pod, container, asked.resource, asked.container_name)
    kinds: tuple[tuple[SourceKind, KeySelector | None], ...] = (
        ("ConfigMap", origin.config_map_key_ref),
        ("Secret", origin.secret_key_ref),
    )
    for kind, selector in kinds:
        if selector is None:
            continue
        data = await source(kind, pod.metadata.namespace, selector.name)
        if data is not None and selector.key in data:
            return data[selector.key].decode(errors="replace")
        if not selector.optional:
            problem = (
                f'{kind.lower()} "{selector.name}" not found'
                if data is None
                else f"couldn't find key {selector.key} in {kind} {pod.metadata.namespace}/{selector.name}"
            )
            raise _missing(container, problem)
    return None


def field_value(pod: Pod, container: Container, path: str, addresses: tuple[str, str]) -> str:
    """The value of a ``fieldRef``; raises ``StartFailed`` for an unsupported path."""
    pod_ip, host_ip = addresses
    values = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }
    if path in values:
        return values[path]
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        raise _missing(container, f"fieldRef {path} is not supported")
    table = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
    return (table or {}).get(match[2], "")


def _resource_value(pod: Pod, container: Container, path: str, name: str) -> str:
    owner = next((candidate for candidate in pod.ordered if candidate.name == name), container)
    kind, _, resource = path.partition(".")
    table = owner.limits if kind == "limits" else owner.requests
    try:
        return str(math.ceil(parse_quantity(table.get(resource, 0))))
    except InvalidQuantity as error:
        raise _missing(container, str(error)) from None


def _missing(container: Container, problem: str) -> StartFailed:
    return StartFailed(container.name, "CreateContainerConfigError", problem)
