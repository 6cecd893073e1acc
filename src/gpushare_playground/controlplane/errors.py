"""What can go wrong with a control plane."""


class ControlPlaneError(Exception):
    """It could not be started or changed; says which component failed, its last words, and what to do."""
