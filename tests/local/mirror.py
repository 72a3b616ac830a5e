"""A Maven mirror on loopback: a real HTTP server with small made-up jars, which misbehaves when it is told to."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kept.local.jars import Jar

PIECE = 16_384


@dataclass(frozen=True)
class Answer:
    """How one request is answered; the defaults are those of a good mirror."""

    status: int = 200
    body: bytes | None = None
    """Other bytes than the published ones."""
    ranges: bool = True
    """Whether a Range request gets only the rest; if not, it gets everything."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body, though more were promised."""
    hold_after: int | None = None
    """Fall silent after so many bytes of the body, until `Mirror.release`."""
    repeated: int = 1
    """Send the body so often, without saying its length: more than the lock file promises."""
    first: Callable[[], object] = field(default=lambda: None)
    """What happens before a word is said."""


GOOD = Answer()


@dataclass
class Asked:
    """One request as the mirror saw it."""

    file_name: str
    range: str | None
    sent: int = 0


class Mirror:
    """What is published, what was asked, and how the next requests for a jar will be answered."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._published: dict[str, bytes] = {}
        self._answers: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.mirror = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/maven2"

    def publish(self, name: str, size: int = 5_000) -> Jar:
        """Make up a jar, serve it, and return its row of a lock file."""
        body = hashlib.shake_256(name.encode()).digest(size)
        jar = Jar(f"org.made.up:{name}:1.0", size, hashlib.sha256(body).hexdigest())
        self._published[f"/maven2/{jar.url_path}"] = body
        return jar

    def content(self, jar: Jar) -> bytes:
        return self._published[f"/maven2/{jar.url_path}"]

    def answer(self, jar: Jar, *answers: Answer) -> None:
        """The answers to the next requests for this jar, one each; afterwards it is a good mirror again."""
        self._answers[f"/maven2/{jar.url_path}"].extend(answers)

    def release(self) -> None:
        """Go on with every answer that is held."""
        self._released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, jar: Jar) -> list[Asked]:
        """The requests for this jar, in their order."""
        return [asked for asked in self.asked if asked.file_name == jar.file_name]

    def body(self, path: str) -> bytes | None:
        return self._published.get(path)

    def next_answer(self, path: str) -> Answer:
        return self._answers[path].popleft() if self._answers[path] else GOOD

    def wait_for_release(self) -> None:
        self._released.wait(60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    mirror: Mirror


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        mirror = self.server.mirror
        asked = Asked(self.path.rsplit("/", 1)[1], self.headers["Range"])
        answer = mirror.next_answer(self.path)
        mirror.asked.append(asked)
        answer.first()
        published = mirror.body(self.path)
        if published is None or answer.status >= 400:
            self.send_error(answer.status if answer.status >= 400 else 404)
            return
        with contextlib.suppress(ConnectionError):  # the client may leave in the middle
            self._send(answer, published if answer.body is None else answer.body, asked)
        self.close_connection = True

    def _send(self, answer: Answer, body: bytes, asked: Asked) -> None:
        wanted = asked.range if asked.range and answer.ranges else "bytes=0-"
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if answer.repeated == 1:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = (body * answer.repeated)[start:]
        if answer.hold_after is not None:
            self._write(rest[: answer.hold_after], asked)
            self.server.mirror.wait_for_release()
            rest = rest[answer.hold_after :]
        self._write(rest[: answer.cut_after], asked)

    def _write(self, data: bytes, asked: Asked) -> None:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self.wfile.write(piece)
            self.wfile.flush()
            asked.sent += len(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the standard library calls
        """Say nothing: the tests read `Mirror.asked`."""
