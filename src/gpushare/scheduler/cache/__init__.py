"""The scheduler's view of the cluster: nodes, pods, and the kubelets' capacity."""
