"""Base classes of errors."""


class Fault(Exception):
    """An error with a message for users.

    ``subject`` names the object at fault (``pod default/a``, ``node n1``), ``problem`` says what is
    wrong and what to do; ``str()`` joins them.
    """

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}" if subject else problem)
        self.subject = subject
        self.problem = problem


class ModelError(Fault, ValueError):
    """Invalid input."""


class InvalidQuantity(ModelError):
    """A text that is not a Kubernetes quantity of the expected kind."""


class InvalidUnit(ModelError):
    """A GPU memory unit that the charts do not accept."""


class InvalidRequest(ModelError):
    """A pod whose GPU request cannot be met on any node, even an empty one."""


class MalformedDevices(ModelError):
    """A node with invalid device annotation or labels."""


class MalformedAllocation(ModelError):
    """A bound pod with invalid or contradictory allocation annotations."""


class InvalidQuotaTree(ModelError):
    """An inconsistent ElasticQuotaTree; it is rejected as a whole."""
