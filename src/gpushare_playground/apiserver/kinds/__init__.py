"""Kinds of objects: their names, scopes and versions, custom resources, and selectors over them."""
