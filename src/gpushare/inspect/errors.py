"""What can go wrong between the command line and the table."""


class InspectError(Exception):
    """Root of what this room raises.

    ``subject`` names the object at fault, ``problem`` says what is wrong and what to do; ``status`` is
    the exit status that the process ends with.
    """

    status = 1

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}" if subject else problem)
        self.subject = subject
        self.problem = problem


class UsageError(InspectError):
    """A command line that cannot be understood."""

    status = 2


class KubectlMissing(InspectError):
    """kubectl is not there, or cannot be started."""


class KubectlFailed(InspectError):
    """kubectl ended with an error; ``complaint`` is what it wrote, ``path`` what it was asked for."""

    def __init__(self, path: str, complaint: str) -> None:
        problem = f"kubectl could not read {path.partition('?')[0]}: {complaint.removeprefix('error: ')}"
        if "(Forbidden)" in complaint:
            problem += "; this command needs the right to list nodes, and pods in all namespaces"
        super().__init__("", problem)
        self.path = path
        self.complaint = complaint

    @property
    def not_found(self) -> bool:
        """Whether the API server said that the object does not exist."""
        return "(NotFound)" in self.complaint

    @property
    def expired(self) -> bool:
        """Whether a list took so long that its continuation is no longer known."""
        return "(Expired)" in self.complaint or "continue parameter is too old" in self.complaint


class UnreadableAnswer(InspectError):
    """The API server's answer is not the list that was asked for."""


class UnknownNode(InspectError):
    """The node that was asked for does not exist, or has no GPU memory to share."""
