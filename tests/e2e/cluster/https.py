"""One request to an API server."""

import http.client
import json
import ssl
import urllib.request
from typing import Any


def ask(method: str, url: str, context: ssl.SSLContext | None, timeout_s: float) -> Any:
    """The body of the answer, decoded when it is JSON. Raises ``OSError``, of which ``HTTPError`` has a refusal's status."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            body = answer.read()
    except http.client.HTTPException as error:
        # One that is killed while it answers.
        raise ConnectionError(f"the answer to {method} {url} is cut off: {error!r}") from error
    is_json = answer.headers.get_content_type() == "application/json"
    return json.loads(body) if is_json else body.decode()
