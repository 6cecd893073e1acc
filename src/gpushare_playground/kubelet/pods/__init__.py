"""A pod's way through the kubelet: admission, preparation, work and status."""
