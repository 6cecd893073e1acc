"""``make gpu-check``: checks the guarantees of isolation on the driver of this machine."""
