"""``gpushare doctor``: examines a cluster or a node without changing it, and suggests what to do."""
