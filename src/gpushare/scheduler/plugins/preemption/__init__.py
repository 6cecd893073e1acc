"""Evicts lower-priority pods for a pending pod."""
