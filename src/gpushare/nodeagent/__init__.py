"""The node agent: one node's GPUs as Kubernetes resources, and the GPU of the scheduler's decision for each container.

There is no state on disk: all that it decides is rebuilt from the API server and the kubelet's pod resources.
"""
