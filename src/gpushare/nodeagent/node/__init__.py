"""The node object: status, condition, events, and what is watched of it."""
