"""Errors of simulation input."""

from gpushare.api.errors import Fault


class SimulateError(Fault):
    """``subject`` names the faulty object, ``problem`` says what is wrong and what to do."""
