"""Container images made without a registry and without a daemon: the product's and those of the test bed."""
