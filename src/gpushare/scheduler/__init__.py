"""The scheduler extender: filter, prioritize, bind and preempt for kube-scheduler, with one ledger.

One process and one event loop own the ledger, so nothing here needs locks: every decision is made between
two awaits (docs/architecture.md).
"""
