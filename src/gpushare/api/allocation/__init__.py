"""What a pod was allocated, and how it is written on the pod."""
