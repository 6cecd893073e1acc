"""What a pod requests, in every notation, and the pod group that it belongs to."""
