"""The node agent: a node's GPUs as Kubernetes resources, and for each container the GPU that the scheduler decided.

Everything is derived from the API server, the kubelet's pod resources and the files of isolated containers; only periods that it has
promised, such as the one after an XID, are in a file of their own.
"""
