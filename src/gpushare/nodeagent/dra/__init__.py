"""Node mode ``dra``: the node's GPUs as a ResourceSlice, and ResourceClaims prepared for the kubelet.

kube-scheduler allocates shares by the capacity in the slice; the kubelet has the plugin prepare what was allocated. Only the
CDI files of prepared claims are stored; everything else is derived from the claims and the GPUs.
"""
