"""What a real kube-scheduler places per second on thousands of nodes, alone and with our extender."""
