"""Pending pods that kube-scheduler is asked to try again."""
