"""Routes requests, and forwards some to kubelets and services."""
