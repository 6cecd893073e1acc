"""The recipe of a release: one version everywhere, a dated changelog, and everything that users install in one folder with its checksums.

Standard library only, as the pipelines.
"""


class Refused(Exception):
    """The release does not begin; the text says why and what to do."""
