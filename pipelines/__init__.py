"""The project's pipelines: what a pull must pass (``ci``), what runs every night, and the quick check of a change.

Standard library only, and Python 3.11: a pipeline starts before anything is installed.
"""
