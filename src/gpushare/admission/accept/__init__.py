"""Requests in the words of other GPU schedulers, which the webhook replaces by ours."""
