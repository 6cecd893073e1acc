"""The cluster as the scheduler sees it: nodes, pods, what kubelets offer."""
