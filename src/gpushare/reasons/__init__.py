"""Reasons, suggestions and warnings: why a pod is pending or rejected, what would help, and what in a manifest is probably a mistake.

Pure: values in, words out. The scheduler, ``inspect``, ``simulate``, ``doctor``, the dashboard and admission all say it in these words.
A node's own reason is written by what refuses (``ledger.fit.reasons``, ``ledger.quota``, gangs, policies); ``categories`` sorts them.
"""
