"""Errors of the admission webhook."""


class InvalidSetting(ValueError):
    """An invalid command line; ``str()`` says what to write instead."""


class UnreadableReview(ValueError):
    """A body that is not an AdmissionReview; ``str()`` says why."""


class MissingObject(Exception):
    """An object of the chart is missing; ``str()`` names it and says what to do."""
