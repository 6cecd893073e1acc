"""Which pods would have to be evicted for a request."""
