"""Enforcement of shares on nodes that isolate (modes ``cgpu``, ``core_mem``, ``mps``).

``controller`` runs the backend that ``backend_selection`` chose: ``preload`` puts our libraries in front of the driver's, with
files of each container in ``storage``; ``mps`` runs NVIDIA's own server; ``driver_limits`` sets limits of the driver. ``watchdog``
compares what processes really use with what their containers were allocated, whatever enforces it.
"""
