"""Errors of the dashboard."""


class InvalidSetting(ValueError):
    """An option has an invalid value; ``str()`` says what to set instead."""
