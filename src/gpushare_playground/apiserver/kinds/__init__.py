"""Kinds of objects: their names, scopes and versions, custom ones, and selectors over them."""
