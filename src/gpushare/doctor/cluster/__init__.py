"""The checks of a cluster, the facts that they examine, and how these are read."""
