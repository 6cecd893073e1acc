"""The project's pipelines: ``ci`` for every pull request, ``nightly``, and ``quick`` for a change.

Standard library only, and Python 3.11: a pipeline starts before anything is installed.
"""
