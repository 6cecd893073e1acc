"""Errors of the ledger."""


class LedgerError(Exception):
    """Base class."""


class Refused(LedgerError):
    """``node`` does not take the request at present.

    ``reason`` is for people. ``hopeless``: no eviction on that node could help, so preemption need not try there.
    """

    def __init__(self, node: str, reason: str, *, hopeless: bool) -> None:
        super().__init__(f"node {node}: {reason}")
        self.node = node
        self.reason = reason
        self.hopeless = hopeless
