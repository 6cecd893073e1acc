"""The release recipe: one version everywhere, a dated changelog, and everything that users install in one folder with checksums.

Standard library only, like the pipelines.
"""


class Refused(Exception):
    """The release is refused; the text says why and what to do."""
