"""What kube-scheduler itself thinks of pods and nodes, before and beside any extender: filters, scores, sums. Pure.

For the parts that play kube-scheduler (the playground's) and those that say what it would do (``gpushare simulate``). Objects are whole, as
parsed JSON; ``wanted`` alone takes those of ``gpushare.api.objects``.
"""
