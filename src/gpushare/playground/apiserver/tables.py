"""Objects as tables for people: the columns of ``kubectl get``."""

from datetime import datetime

from gpushare.playground.apiserver.errors import Object
from gpushare.playground.apiserver.resources import Resource


def table_of(
    resource: Resource, objs: list[Object], metadata: Object, now: datetime, include: str, *, headers: bool
) -> Object:
    """A ``Table``."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
        ],
        "rows": [
            {
                "cells": [obj["metadata"]["name"]],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": obj["metadata"],
                },
            }
            for obj in objs
        ],
    }
