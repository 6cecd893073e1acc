"""The stages of a pod in the kubelet: admission, preparation, work and status."""
