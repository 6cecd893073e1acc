"""The checks of a cluster, the facts that they look at, and how these are read."""
