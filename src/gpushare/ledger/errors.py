"""The one root of what the ledger refuses."""


class LedgerError(Exception):
    """Something that the ledger does not do."""


class Refused(LedgerError):
    """A request that ``node`` does not take at present.

    ``reason`` is for people; ``hopeless`` says that no eviction on that node could help, so that
    preemption need not try there.
    """

    def __init__(self, node: str, reason: str, *, hopeless: bool) -> None:
        super().__init__(f"node {node}: {reason}")
        self.node = node
        self.reason = reason
        self.hopeless = hopeless
