"""How much of what is free the expected requests could not use."""
