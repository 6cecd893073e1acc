"""The device manager: device plugins, allocation, checkpoint and pod resources."""
