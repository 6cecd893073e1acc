"""What can go wrong with what is to be simulated."""

from gpushare.api.errors import Fault


class SimulateError(Fault):
    """``subject`` names what is at fault, ``problem`` says what is wrong and what to do."""
