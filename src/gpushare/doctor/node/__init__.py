"""The checks of a node, the facts that they examine, and how these are read."""
