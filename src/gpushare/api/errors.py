"""How every fault is told, and the one root of what the model refuses."""


class Fault(Exception):
    """Something is wrong, in words for people.

    ``subject`` names the object at fault (``pod default/a``, ``node n1``), ``problem`` says what is
    wrong and what to do; ``str()`` joins them.
    """

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}" if subject else problem)
        self.subject = subject
        self.problem = problem


class ModelError(Fault, ValueError):
    """Input that the model refuses."""


class InvalidQuantity(ModelError):
    """A text that is no Kubernetes quantity, or none of the kind that is wanted."""


class InvalidUnit(ModelError):
    """A GPU memory unit other than those that the charts accept."""


class InvalidRequest(ModelError):
    """A pod whose GPU request can be met on no node, whatever is free."""


class MalformedDevices(ModelError):
    """A node whose GPU description or labels cannot be understood."""


class MalformedAllocation(ModelError):
    """A bound pod whose allocation annotations are broken or contradict each other."""


class InvalidQuotaTree(ModelError):
    """An ElasticQuotaTree that contradicts itself, or counts what nobody asks for: it is refused whole."""
