"""The cost and accuracy of isolation, on the fake driver."""
