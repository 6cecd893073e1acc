"""``gpushare doctor``: looks a cluster or a node over, changes nothing, and says what to do."""
