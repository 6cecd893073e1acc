"""``kubectl proxy`` before a scripted kubectl: ``python scripted_proxy.py KUBECTL
--unix-socket=PATH``.

A GET returns that kubectl's answer to ``get --raw``; a POST returns a token, which is never
required.
"""

import http.server
import json
import socketserver
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        """The scripted kubectl's answer, or its error."""
        ran = subprocess.run([sys.argv[1], "get", "--raw", self.path], capture_output=True, check=False)
        if ran.returncode == 0:
            self._answer(200, ran.stdout)
            return
        # "Error from server (NotFound): nothing there"
        stderr = ran.stderr.decode()
        reason, _, message = stderr.partition("(")[2].partition("): ")
        self._answer(404, json.dumps({"reason": reason, "message": message.strip()}).encode())

    def do_POST(self) -> None:
        """A token."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, json.dumps({"status": {"token": "good"}}).encode())

    def address_string(self) -> str:
        """No address: the socket has none."""
        return ""

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    with socketserver.ThreadingUnixStreamServer(sys.argv[2].partition("=")[2], Handler) as server:
        server.serve_forever()
