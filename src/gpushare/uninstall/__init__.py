"""What ``helm uninstall`` leaves behind on nodes, and the process that takes it away."""
