"""What can go wrong with a playground."""


class ClusterError(Exception):
    """The playground could not be started or changed; says which part failed and its last words."""
