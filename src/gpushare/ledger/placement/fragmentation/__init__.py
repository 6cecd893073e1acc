"""How much of the free memory the expected requests could not use."""
