"""``make gpu-check``: what isolation promises, held against the driver of this machine."""
