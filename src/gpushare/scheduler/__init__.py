"""The scheduler extender: filter, prioritize, bind and preempt for kube-scheduler, over one ledger.

One process and one event loop own the ledger, so nothing here locks: every decision is made between
two awaits (docs/architecture.md).
"""
