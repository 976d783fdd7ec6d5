"""The server as an ASGI application: its paths, authorisation, and errors in one form."""

from __future__ import annotations

import hmac
from hashlib import sha256
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bringup.compile.serve.connections import CROWDED
from bringup.compile.serve.error_response import Refused
from bringup.compile.serve.generation import Service, endpoints
from bringup.compile.serve.hosts import Named
from bringup.compile.serve.metrics import Metrics

HEALTH, LIVE, METRICS, MODELS = "/health", "/health/live", "/metrics", "/v1/models"


def application(service: Service, api_key: str | None, names: frozenset[str] | None = None) -> Starlette:
    """The application with all its paths. With an `api_key`, every path except those of /health requires it.

    `names`: the accepted values of Host, as in `hosts.Named`; None accepts all.
    """
    generating = endpoints(service)

    async def health(request: Request) -> Response:
        state = "failed" if service.intake.lost else "draining" if service.intake.draining else "ok"
        return JSONResponse({"status": state}, 200 if state == "ok" else 503)

    async def live(request: Request) -> Response:
        lost = service.intake.lost
        return JSONResponse({"status": "failed" if lost else "ok"}, 503 if lost else 200)

    async def metrics(request: Request) -> Response:
        text, kind = service.metrics.text()
        return Response(text, headers={"content-type": kind})

    async def models(request: Request) -> Response:
        return JSONResponse(service.models.listed())

    async def model(request: Request) -> Response:
        return JSONResponse(service.models.entry(request.path_params["name"]))

    routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generating.items()),
        Route(MODELS, models),
        Route(f"{MODELS}/{{name:path}}", model),
        Route(HEALTH, health),
        Route(LIVE, live),
        Route(METRICS, metrics),
    ]
    middleware = [Middleware(_Counted, service.metrics, (*generating, MODELS, HEALTH, LIVE, METRICS))]
    middleware.append(Middleware(_Crowded))
    middleware.append(Middleware(_Bounded, service.limits.head_bytes))
    if names is not None:
        middleware.append(Middleware(Named, names))
    if api_key is not None:
        middleware.append(Middleware(_Authorised, api_key))
    handlers = {Refused: _refused, HTTPException: _of_http, Exception: _failed}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class _Counted:
    """Counts responses by path and status; all unknown paths are counted as `other`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: tuple[str, ...]) -> None:
        self._app, self._requests, self._paths = app, metrics.requests, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class _Crowded:
    """Rejects requests of connections beyond the limit, except those of /health: a busy server is alive.

    Such a connection is closed after its answer, so that probes do not take the room of others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        if not scope.get("state", {}).get(CROWDED):
            await self._app(scope, receive, send)
        elif scope["path"] in (HEALTH, LIVE):
            await self._app(scope, receive, closing)
        else:
            await _TOO_MANY.response()(scope, receive, closing)


_TOO_MANY = Refused(
    503,
    "the server has too many open connections; try again later",
    code="too_many_connections",
    headers={"retry-after": "1"},
)


class _Bounded:
    """Rejects long heads. h11 rejects those that arrive in parts, but accepts one part of up to 256 KiB."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count = len(scope["raw_path"] or b"") + len(scope["query_string"])
        count += sum(len(name) + len(value) for name, value in scope["headers"])
        message = f"the head of the request is longer than the limit of {self._limit:,} bytes"
        app = self._app if count <= self._limit else Refused(431, message, code="head_too_long").response()
        await app(scope, receive, send)


class _Authorised:
    """Accepts only requests with the key as a bearer token (RFC 6750)."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._digest = app, _digest(api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip()), self._digest) and scheme.lower() == "bearer"
        app = self._app if right or scope["path"] in (HEALTH, LIVE) else _UNAUTHORISED.response()
        await app(scope, receive, send)


_UNAUTHORISED = Refused(
    401,
    "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
    code="invalid_api_key",
    headers={"www-authenticate": "Bearer"},
)


def _digest(key: str) -> bytes:
    """A digest, of equal length for all keys, so that the time of a comparison reveals nothing."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _of_http(request: Request, error: Exception) -> Response:
    """The response for a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = f"{request.method} {request.url.path}: {status.phrase.lower()}"
    return Refused(status, message[:400], headers=error.headers).response()


async def _failed(request: Request, error: Exception) -> Response:
    """The response for a bug in the server; the log contains the error."""
    return Refused(500, "the server failed on this request; the error is in its log").response()
