"""A hub on this machine: the routes that `huggingface_hub` asks, and everything that goes wrong.

Serves bytes that a test gives it; knows nothing of GGUF.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What it serves, how it misbehaves, and what it was asked."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    licence: str = "apache-2.0"
    gated: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)  # files whose bytes are not those listed
    breaks: dict[str, int] = field(default_factory=dict)  # file -> bytes before the line is cut
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # verb, path, range
    url: str = ""
    files_url: str = ""  # another host, as the hub's files have: no key is sent there

    def add(self, repo: str, *files: Path) -> None:
        self.repos.setdefault(repo, {}).update({f.name: f.read_bytes() for f in files})

    def ranges(self, file: str) -> list[str | None]:
        """Ranges of the downloads of a file, in order."""
        return [r for verb, path, r in self.asked if verb == "GET" and path == f"/cdn/{file}"]


class _Server(ThreadingHTTPServer):
    """Ends with all of its connections: clients keep theirs open for the next request."""

    daemon_threads = False  # those are not waited for

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has gone already
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = _Server(_handler(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    hub.files_url = f"http://localhost:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        serves = hub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    serves: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.serves.asked.append((self.command, path, self.headers.get("Range")))
        if path == "/api/models":
            self._search(parse_qs(parts.query))
        elif path.startswith("/api/models/"):
            self._model(path.removeprefix("/api/models/"))
        elif path.startswith("/cdn/"):
            self._bytes(path.removeprefix("/cdn/"))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._resolve(found[1], found[2])
        else:
            self._answer(404)

    # -- routes ---------------------------------------------------------------

    def _model(self, repo: str) -> None:
        if self._turned_away(repo, "/api/models/{}"):
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "b",
                "lfs": {"sha256": _sha(data), "size": len(data), "pointerSize": 1},
            }
            for name, data in self.serves.repos[repo].items()
        ]
        self._json(
            {
                "id": repo,
                "sha": COMMIT,
                "gated": "auto" if repo in self.serves.gated else False,
                "cardData": {"license": self.serves.licence},
                "siblings": siblings,
                "tags": [],
            }
        )

    def _search(self, query: dict[str, list[str]]) -> None:
        words = query.get("search", [""])[0].lower()
        author = query.get("author", [""])[0]
        found = [r for r in self.serves.repos if all(w in r.lower() for w in words.split())]
        found = [r for r in found if not author or r.startswith(f"{author}/")]
        self._json([{"id": name, "tags": []} for name in found])

    def _resolve(self, repo: str, file: str) -> None:
        if self._turned_away(repo, f"/{{}}/resolve/main/{file}"):
            return
        if repo in self.serves.gated:
            self._answer(401, {"X-Error-Code": "GatedRepo"})
        elif file not in self.serves.repos[repo]:
            self._answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            data = self.serves.repos[repo][file]
            self._answer(
                302,
                {
                    "Location": f"{self.serves.files_url}/cdn/{repo}/{file}",
                    "X-Repo-Commit": COMMIT,
                    "X-Linked-Size": str(len(data)),
                    "X-Linked-ETag": f'"{_sha(data)}"',
                },
            )

    def _turned_away(self, repo: str, path: str) -> bool:
        """Renamed, or not there at all."""
        if repo in self.serves.renamed:
            self._answer(307, {"Location": path.format(self.serves.renamed[repo])})
            return True
        if repo not in self.serves.repos:
            self._answer(401, {"X-Error-Code": "RepoNotFound"})
            return True
        return False

    def _bytes(self, path: str) -> None:
        owner, name, file = path.split("/", 2)
        data = self.serves.repos[f"{owner}/{name}"][file]
        if file in self.serves.wrong:
            data = bytes(len(data))
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(found[1]) if found else 0
        end = min(int(found[2]) + 1, len(data)) if found and found[2] else len(data)
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if found else {}
        part, cut = data[start:end], self.serves.breaks.pop(file, None)
        self._answer(206 if found else 200, headers, part, cut)

    # -- answers --------------------------------------------------------------

    def _json(self, content: object) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _answer(
        self,
        status: int,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
