"""Burstable memory: containers that may use more of a GPU than they request while it is free (docs/decisions/0043)."""
