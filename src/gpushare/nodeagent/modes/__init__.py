"""What the node agent does on a node by its mode. What else a mode means is in ``gpushare.api.node.modes``."""
