"""What plays the container runtime: processes, their logs, exec, and the fake driver before them."""
