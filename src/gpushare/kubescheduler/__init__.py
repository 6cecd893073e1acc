"""kube-scheduler's own filters, scores and sums, which apply in addition to an extender. Pure.

For the parts that play kube-scheduler (the playground's) and those that say what it would do (``gpushare simulate``). Objects are whole, as
parsed JSON; ``wanted`` alone takes those of ``gpushare.api.objects``.
"""
