"""``gpushare simulate``: where pods would land and what would wait, without a word to the cluster.

The scheduler's own verbs (``scheduler/``) over its own ledger, and kube-scheduler's own filters and scores (``kubescheduler/``), on a
cluster that was read once. Nothing is written but files that are asked for.
"""
