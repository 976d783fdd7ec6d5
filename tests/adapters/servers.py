"""Local HTTP servers that count the bytes that they send: a plain one, and one with the API of the hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

POLL = 0.01  # seconds after which a server notices its end: 0.5 by default, which every test would wait
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Answer = Callable[["Server", BaseHTTPRequestHandler], bool]  # whether it has answered


class Server:
    """Files by path, with ranges and ETags. `before` may answer a request in another way."""

    def __init__(self, files: Mapping[str, bytes], before: Answer | None = None, *, host: str = "127.0.0.1") -> None:
        self.files, self.before = dict(files), before
        self.sent = 0
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                server.tokens.append(self.headers.get("Authorization"))
                if not (server.before and server.before(server, self)):
                    server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(POLL,), daemon=True).start()
        self.url = f"http://{host}:{self.server.server_port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, data: bytes | None = None) -> None:
        """The range of the file that the path names; 404 where there is none."""
        data = self.files.get(unquote(urlsplit(request.path).path).lstrip("/")) if data is None else data
        if data is None:
            self.send(request, 404, b"")
            return
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        if wanted and request.headers.get("If-Range", tag) == tag:
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            if start >= len(data):
                self.send(request, 416, b"")
                return
            where = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": tag}
            self.send(request, 206, data[start:end], where)
        else:
            self.send(request, 200, data, {"ETag": tag})

    def send(
        self, request: BaseHTTPRequestHandler, status: int, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            request.send_header(key, value)
        request.end_headers()
        try:
            for start in range(0, len(data), 1 << 16):
                request.wfile.write(data[start : start + (1 << 16)])
                self.sent += len(data[start : start + (1 << 16)])
        except OSError:  # the client has what it needs
            pass


def hub(files: Mapping[str, bytes], before: Answer | None = None) -> Server:
    """A hub with the repository org/toy."""

    def api(server: Server, request: BaseHTTPRequestHandler) -> bool:
        path = unquote(urlsplit(request.path).path)
        if before and before(server, request):
            return True
        if path.startswith("/api/models/org/toy"):
            found = {"id": "org/toy", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            server.send(request, 200, json.dumps(found).encode())
            return True
        if path.startswith("/api/v1/models/org/toy/repo/files"):
            listed = [{"Path": name, "Type": "blob"} for name in files] + [{"Path": "folder", "Type": "tree"}]
            server.send(request, 200, json.dumps({"Code": 200, "Data": {"Files": listed}}).encode())
            return True
        return False

    places = ("org/toy/resolve/" + COMMIT, "models/org/toy/resolve/master")
    return Server({f"{place}/{name}": data for place in places for name, data in files.items()}, api)
