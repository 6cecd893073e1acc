"""``metadata.managedFields``: who owns which field."""

from gpushare.playground.apiserver.errors import Object


def note_update(
    schema: str | None, old: Object, new: Object, manager: str, subresource: str, now: str
) -> None:
    """Move ownership of the fields that an update changed to ``manager``, where ownership is tracked."""
