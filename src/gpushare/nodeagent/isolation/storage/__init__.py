"""Files on the node: libraries, limits and usage files of containers."""
