"""Reasons, suggestions and warnings: why a pod is pending or rejected, what would help, and what in a manifest is probably a mistake.

No I/O. The scheduler, ``inspect``, ``simulate``, ``doctor``, the dashboard and admission share these texts.
The reason of a single node is written by the component that refuses (``ledger.fit.reasons``, ``ledger.quota``, gangs, policies);
``categories`` classifies it.
"""
