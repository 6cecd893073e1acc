"""What stops a build, told so that one knows what to do."""


class CannotBuild(Exception):
    """The image cannot be made here; the text says why and what to do."""
