"""Placement rules of other GPU schedulers, for comparison only: a module for each project, with its source and version.

A rule chooses among nodes and GPUs that would do. What would do, and all else, is decided by this scheduler.
"""
