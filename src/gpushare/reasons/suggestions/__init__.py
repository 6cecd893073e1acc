"""Suggestions for pending pods. Each is tried in a separate ledger before it is suggested."""
