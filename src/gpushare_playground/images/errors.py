"""Errors of images."""

from gpushare.api.errors import Fault


class ImageError(Fault):
    """The base class. ``subject`` names the image or file, ``problem`` states what is wrong and what to do."""


class UnknownImage(ImageError):
    """No described image has this name; ``known`` are the existing ones."""

    def __init__(self, reference: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f'image "{reference}"',
            "this playground pulls nothing and has no local program under that name; known images: "
            + ", ".join(known)
            + " (describe one of your own in a folder named by --images)",
        )
        self.reference = reference
        self.known = known


class MalformedImage(ImageError):
    """A description that cannot be read; ``subject`` is its file."""
