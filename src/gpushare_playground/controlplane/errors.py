"""Errors of a control plane."""


class ControlPlaneError(Exception):
    """It could not be started or changed; names the component that failed, with the end of its log, and what to do."""
