"""Strict reading of YAML: option files and manifests."""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import yaml

from gpushare.options.option import TwiceThere

T = TypeVar("T")


class _Finite(yaml.SafeLoader):
    """YAML without recursive values, and with dates as texts."""

    def construct_document(self, node: yaml.Node) -> Any:
        # Children are built before their parents, which detects recursion.
        self.deep_construct = True
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001 - PyYAML's
        if node in self.recursive_objects:
            raise yaml.YAMLError(
                f"line {node.start_mark.line + 1}: what begins here refers to itself; write out what is meant"
            )
        return super().construct_object(node, deep)


_DATE: Final = "tag:yaml.org,2002:timestamp"
_Finite.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Loader(_Finite):
    """YAML without surprises: no duplicate keys, and ``on``, ``off``, ``yes`` and ``no`` are texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001 - PyYAML's
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = repr(self.construct_object(key_node, deep=True)).strip("'")
            if key in seen:
                raise TwiceThere(f"line {key_node.start_mark.line + 1}: key {key} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_BOOLEAN: Final = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in _Finite.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parsed(text: str) -> Any:
    """The value in an option file; raises ``ValueError`` for invalid YAML."""
    return _read(lambda: yaml.load(text, _Loader))  # noqa: S506 - a SafeLoader


def documents(raw: bytes) -> list[Any]:
    """The documents of a file of manifests; raises ``ValueError`` for invalid YAML."""
    return _read(lambda: list(yaml.load_all(raw, _Finite)))


def _read(load: Callable[[], T]) -> T:
    try:
        return load()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (AttributeError, LookupError, TypeError) as error:
        # PyYAML does not check a value before it applies an explicit tag.
        raise ValueError(f"a value is not what its tag (!!...) says ({error})") from None
