"""The simulated container runtime: processes, their logs, exec, and the fake driver for them."""
