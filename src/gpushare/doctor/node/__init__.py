"""The checks of a node, the facts that they look at, and how these are read."""
