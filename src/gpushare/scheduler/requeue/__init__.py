"""Makes kube-scheduler retry pending pods."""
