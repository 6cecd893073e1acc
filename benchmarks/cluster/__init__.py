"""Pods per second of a real kube-scheduler on thousands of nodes, alone and with our extender."""
