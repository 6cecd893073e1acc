"""Errors of a playground."""


class ClusterError(Exception):
    """The playground could not be started or changed; names the part that failed, with the end of its log."""
