"""``gpushare node-template``: a node group's resources for an autoscaler, from an existing node or a list of GPUs."""

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TextIO

import msgspec

from gpushare.api.errors import ModelError
from gpushare.api.node.modes import MODES
from gpushare.api.node.node_template import InvalidTemplate, NodeTemplate, template_of, written
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.nodetemplate.options import ROLE
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse


def _template(options: SimpleNamespace, stdin: TextIO) -> NodeTemplate:
    unit = None if options.unit is None else MemoryUnit.parse(options.unit, "--unit")
    if options.node is not None:
        if options.gpus is not None or options.gpu_memory_mib is not None or options.mode is not None:
            raise InvalidTemplate(
                "", "--node says what the GPUs are: leave out --gpus, --gpu-memory-mib and --mode"
            )
        template = template_of(decode_node(_read(options.node, stdin)))
        return template if unit is None else msgspec.structs.replace(template, unit=unit)
    if options.gpus is None or options.gpu_memory_mib is None:
        raise InvalidTemplate("", "give --node, or --gpus and --gpu-memory-mib")
    gpus = (options.gpu_memory_mib,) * options.gpus
    return NodeTemplate(gpus, MODES[options.mode or "share"], unit or MemoryUnit.GIB)


def _read(name: str, stdin: TextIO) -> bytes:
    if name == "-":
        return stdin.read().encode()
    with open(name, "rb") as file:
        return file.read()


def main(argv: Sequence[str] | None = None) -> int:
    """Print it as JSON, which is also YAML; returns 0, or 2 for invalid input."""
    try:
        options = read(ROLE, argv, os.environ)
        manifest = written(_template(options, sys.stdin), options.output, options.group)
    except (InvalidSettings, ModelError, msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        return refuse(ROLE.program, error)
    print(msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
