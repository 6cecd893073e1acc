"""What the admission webhook refuses to run with, or to read."""


class InvalidSetting(ValueError):
    """A command line that cannot be run; ``str()`` says what to write instead."""


class UnreadableReview(ValueError):
    """A body that is no AdmissionReview; ``str()`` says what is wrong with it."""


class MissingObject(Exception):
    """An object that the chart makes is not there; ``str()`` names it and says what to do."""
