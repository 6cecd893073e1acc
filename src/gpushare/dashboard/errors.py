"""What this room refuses."""


class InvalidSetting(ValueError):
    """An option that cannot be used; ``str()`` says what to give instead."""
