"""Error responses, in the format of OpenAI's API.

https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from bringup.diagnostics import BringupError

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
CONTEXT = "context_length_exceeded"  # OpenAI's code for BU016, which clients recognise
UNANSWERED = 500


class Refused(Exception):
    """An error response: its HTTP status, a message, and `param`, the wrong field of the body.

    `code` is for programs: OpenAI's code if there is one, otherwise that of a page of `bringup explain`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        default = "server_error" if self.status >= UNANSWERED else "invalid_request_error"
        words = {"message": self.message, "type": TYPES.get(self.status, default)}
        return {"error": words | {"param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.body()).encode()

    def response(self) -> Response:
        """The HTTP response."""
        return Response(self.encoded(), self.status, self.headers, "application/json")


def wrong(param: str, message: str) -> Refused:
    """400, for a field of the body."""
    return Refused(400, message, param=param, code="invalid_value")


def of_request(error: BringupError, param: str) -> Refused:
    """400, for an error of a tokenizer, a chat template or the batch."""
    finding = error.findings[0]
    return Refused(400, finding.message, param=param, code=CONTEXT if finding.code == "BU016" else finding.code)


def of_step(error: BaseException) -> Refused:
    """500, for a step that failed. The error is only in the log, unless it is a diagnostic."""
    if isinstance(error, BringupError):
        finding = error.findings[0]
        return Refused(500, f"the request failed: {finding.message}", code=finding.code)
    return Refused(500, "the request failed: a step of the program raised an error, which is in the server's log")
