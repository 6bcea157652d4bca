"""A page in a real browser, and the small server that it comes from.

The server gives the page, hears what the page has seen, and passes everything else on to a door, as
a reverse proxy does that leaves a request as it is: so page and door are of one origin, and the
door's rule about strangers' pages (HTTP H2) holds as it stands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")

_PAGE: Final = """<!doctype html><title>follower</title><script>
const told = {seen: [], opened: 0, errors: 0, foreign: {messages: 0, refused: false}};
const source = new EventSource("/v1/streams/s/events?from=earliest");
source.onopen = () => { told.opened += 1; };
source.onerror = () => { told.errors += 1; };
source.onmessage = event => { told.seen.push(JSON.parse(event.data).value); };
const foreign = new EventSource("http://DOOR/v1/streams/s/events?from=earliest");
foreign.onmessage = () => { told.foreign.messages += 1; };
foreign.onerror = () => { told.foreign.refused = foreign.readyState === EventSource.CLOSED; };
async function tell() {
  try {
    const headers = {"content-type": "application/json"};
    await fetch("/seen", {method: "POST", headers, body: JSON.stringify(told)});
  } finally {
    setTimeout(tell, 100);
  }
}
tell();
</script>"""


class Page:
    """What the server knows of its page.

    Attributes:
        door: where requests go.
        told: what the page has said last: `seen`, in the order of its events.
        asked: the Last-Event-ID of each request for events, "" where it had none.
    """

    def __init__(self, door: str) -> None:
        self.door = door
        self.told: dict[str, Any] = {"seen": []}
        self.asked: list[str] = []
        self._foreign = door
        self._open: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def seen(self) -> list[int]:
        found: list[int] = self.told["seen"]
        return found

    def __enter__(self) -> Page:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self.cut()
        self._server.server_close()

    def cut(self) -> None:
        """Break what is open to doors."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def wait(self, what: str, holds: Callable[[Page], bool], within_s: float = 60) -> None:
        deadline_s = time.monotonic() + within_s
        while not holds(self):
            told = {**self.told, "seen": len(self.seen)}
            assert time.monotonic() < deadline_s, f"{what}: {told}, asked {self.asked}"
            time.sleep(0.05)

    def _handler(page) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler has a self, too
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/":
                    self._answer(200, _PAGE.replace("DOOR", page._foreign).encode())
                elif self.path.startswith("/v1/"):
                    self.close_connection = True
                    page.asked.append(self.headers.get("last-event-id", ""))
                    # Without an answer, as where a connection breaks: a status would be for good.
                    with suppress(OSError):
                        self._pass_on()
                else:
                    self._answer(404, b"")

            def do_POST(self) -> None:
                page.told = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer(200, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _pass_on(self) -> None:
                host, _, port = page.door.rpartition(":")
                connection = HTTPConnection(host, int(port), timeout=60)
                connection.connect()
                its: socket.socket = connection.sock
                page._open.add(its)
                try:
                    headers = {name: text for name, text in self.headers.items() if name}
                    connection.request("GET", self.path, headers=headers)
                    answer = connection.getresponse()
                    self.send_response(answer.status)
                    self.send_header("content-type", answer.headers["content-type"])
                    self.send_header("connection", "close")
                    self.end_headers()
                    while data := answer.read1():
                        self.wfile.write(data)
                finally:
                    page._open.discard(its)
                    connection.close()

            def log_message(self, *_args: object) -> None:
                pass

        return Handler


@contextmanager
def browser(url: str, directory: Path) -> Iterator[None]:
    """A browser without a window, at that page. It must be on the machine (`which_browser`)."""
    program = which_browser()
    assert program is not None
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *(f"--user-data-dir={directory / 'profile'}", url),
    ]
    with (
        (directory / "browser.log").open("wb") as log,
        subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(directory)},
            # It is several processes, which end together.
            start_new_session=True,
        ) as process,
    ):
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def which_browser() -> str | None:
    return next((found for each in BROWSERS if (found := shutil.which(each))), None)
