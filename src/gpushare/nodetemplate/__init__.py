"""Node templates for autoscalers: the GPU resources of nodes that do not exist yet."""
