"""``gpushare simulate``: where pods would be placed and which would be pending, without any change to the cluster.

It runs the scheduler's own verbs (``scheduler/``) on its own ledger, and kube-scheduler's own filters and scores
(``kubescheduler/``), on a cluster state that was read once. It writes nothing except files that the user requests.
"""
