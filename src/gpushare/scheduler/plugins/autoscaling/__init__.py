"""Nodes that cluster autoscalers add: placeholder pods and start-up taints."""
