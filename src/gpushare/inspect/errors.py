"""Errors of the command."""


class InspectError(Exception):
    """Base class of this package's errors.

    ``subject`` names the object at fault, ``problem`` says what is wrong and what to do; ``status`` is
    the exit status of the process.
    """

    status = 1

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}" if subject else problem)
        self.subject = subject
        self.problem = problem


class UsageError(InspectError):
    """The command line is wrong."""

    status = 2


class KubectlMissing(InspectError):
    """kubectl is not installed, or cannot be started."""


class KubectlFailed(InspectError):
    """kubectl failed; ``complaint`` is its error message, ``path`` the requested path."""

    def __init__(self, path: str, complaint: str) -> None:
        problem = f"kubectl could not read {path.partition('?')[0]}: {complaint.removeprefix('error: ')}"
        if "(Forbidden)" in complaint:
            problem += "; this command needs permission to list nodes, and pods in all namespaces"
        super().__init__("", problem)
        self.path = path
        self.complaint = complaint

    @property
    def not_found(self) -> bool:
        """Whether the API server answered that the object does not exist."""
        return "(NotFound)" in self.complaint

    @property
    def expired(self) -> bool:
        """Whether a paged list took so long that its continue token expired."""
        return "(Expired)" in self.complaint or "continue parameter is too old" in self.complaint


class UnreadableAnswer(InspectError):
    """The API server's answer is not the requested list."""


class UnknownNode(InspectError):
    """The requested node does not exist, or has no GPU memory to share."""
