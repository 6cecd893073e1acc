"""Memory that containers use beyond their share, found from outside."""
