"""Scheduling cycle and binding cycle of one pod."""
