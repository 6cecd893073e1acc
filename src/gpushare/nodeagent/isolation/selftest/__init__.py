"""Whether the isolation libraries work with this node's driver."""
