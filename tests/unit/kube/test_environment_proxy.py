"""Which proxy the environment configures."""

import pytest

from gpushare.kube.auth.proxy import environment_proxy

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "exceptions", "proxied"),
    [
        ("https://api.lab:6443", "", True),
        ("https://api.lab:6443", "*", False),
        ("https://api.lab:6443", "other, api.lab", False),
        ("https://api.lab:6443", "lab", False),
        ("https://api.lab:6443", ".lab", False),
        ("https://api.lab:6443", "*.lab", False),
        ("https://api.lab:6443", "ab", True),
        ("https://lab:6443", ".lab", True),
        ("https://api.lab:6443", "api.lab:6443", False),
        ("https://api.lab:6443", "api.lab:443", True),
        ("https://api.lab", "api.lab:443", False),
        ("http://api.lab", "api.lab:80", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "11.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://10.1.2.3:6443", "not/a/network", True),
        ("https://api.lab:6443", "10.0.0.0/8", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
    ],
)
def test_exceptions_are_honoured(server: str, exceptions: str, proxied: bool) -> None:
    environ = {"HTTPS_PROXY": PROXY, "HTTP_PROXY": "", "NO_PROXY": exceptions}
    assert environment_proxy(server, environ) == (PROXY if proxied and server.startswith("https") else "")


def test_lower_case_variables_and_a_bare_address_are_accepted() -> None:
    assert environment_proxy("http://api", {"http_proxy": "proxy:3128"}) == PROXY
    assert environment_proxy("http://api", {"http_proxy": "proxy:3128", "no_proxy": "api"}) == ""
    assert environment_proxy("https://api", {"http_proxy": "proxy:3128"}) == ""
