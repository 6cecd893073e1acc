"""Common GPU programs, unmodified from their wheels, on the fake driver and under limits (``make clients``)."""
