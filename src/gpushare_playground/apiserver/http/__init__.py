"""Requests are routed here, and passed on to kubelets and services."""
