"""Node mode ``dra``: the node's GPUs as a ResourceSlice, and ResourceClaims prepared for the kubelet.

kube-scheduler allocates shares by the capacity that the slice offers; the kubelet asks the plugin to prepare what was allocated.
Nothing but the CDI files of prepared claims is kept: all else follows from the claims and the GPUs.
"""
