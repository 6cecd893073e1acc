"""Errors of requests to the API server."""

from gpushare.api.errors import Fault


class KubeError(Fault):
    """The base class. ``subject`` names the cause, ``problem`` says what is wrong and what to do."""


class KubeconfigError(KubeError):
    """A kubeconfig that does not lead to an API server.

    ``file`` is its path, ``key`` the entry at fault (``users[admin].user.client-key``; may be empty),
    ``advice`` what to do.
    """

    def __init__(self, file: str, key: str, fault: str, advice: str) -> None:
        super().__init__(f"kubeconfig {file}", f"{key}: {fault}; {advice}" if key else f"{fault}; {advice}")
        self.file = file
        self.key = key
        self.advice = advice


class CredentialError(KubeError):
    """No credential at run time: a failing exec plugin, an unreadable token file."""


class InvalidName(KubeError):
    """A text that is not a valid object name; no request is made."""


class MalformedAnswer(KubeError):
    """The server answered with success, but with an unexpected body."""


class OversizeLine(KubeError):
    """A line of a watch above the size limit."""


class Unreachable(KubeError):
    """No response: connection refused, timeout, connection lost, or an untrusted certificate.

    ``sent``: whether the server may have acted on the request: ``False`` it never received it,
    ``True`` it had begun to respond, ``None`` unknown.
    """

    def __init__(self, subject: str, problem: str, *, sent: bool | None) -> None:
        super().__init__(subject, problem)
        self.sent = sent


class ApiError(KubeError):
    """The server answered with a failure.

    ``status``: HTTP status. ``reason`` and ``message``: those of the ``Status`` object; if the answer is none, empty and the start of its
    text. ``path``: the requested path. ``retry_after_s``: the wait in seconds that the server requests.
    """

    def __init__(
        self, status: int, reason: str, message: str, path: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(path, f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path
        self.retry_after_s = retry_after_s

    @property
    def not_found(self) -> bool:
        """The object does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """The object is in another state than the request assumed: other UID, already bound, exists."""
        return self.status == 409

    @property
    def gone(self) -> bool:
        """The resource version or continue token has expired."""
        return self.status == 410

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500
