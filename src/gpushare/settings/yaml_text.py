"""YAML as files of options are written in."""

import re
from typing import Any, Final

import yaml

from gpushare.settings.option import TwiceThere


class _Loader(yaml.SafeLoader):
    """YAML without its surprises: no key twice, and ``on``, ``off``, ``yes`` and ``no`` are texts."""

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
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parsed(text: str) -> Any:
    """What the text says; raises ``ValueError`` where it is no YAML."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
