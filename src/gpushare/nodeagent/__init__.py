"""The node agent: a node's GPUs as Kubernetes resources, and for each container the GPU that the scheduler decided.

It keeps no state on disk: everything is derived from the API server and the kubelet's pod resources.
"""
