"""The node agent's behaviour by node mode. All other properties of modes are in ``gpushare.api.node.modes``."""
