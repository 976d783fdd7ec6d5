"""Answers that are errors, in the form of OpenAI's API.

https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from bringup.diagnostics import BringupError

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
CONTEXT = "context_length_exceeded"  # OpenAI's word for BU016, which clients know
UNANSWERED = 500


class Refused(Exception):
    """A request that is answered with an error: its HTTP status, a message, and the field of the body that is wrong.

    `code` is a word for programs: OpenAI's where there is one, else the code of a page (`bringup explain`).
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
        """The answer."""
        return Response(self.encoded(), self.status, self.headers, "application/json")


def wrong(param: str, message: str) -> Refused:
    """400, for a field of the body."""
    return Refused(400, message, param=param, code="invalid_value")


def of_request(error: BringupError, param: str | None = None) -> Refused:
    """400, for what a tokenizer, a chat template or the batch refuses."""
    finding = error.findings[0]
    return Refused(400, finding.message, param=param, code=CONTEXT if finding.code == "BU016" else finding.code)


def of_step(error: BaseException) -> Refused:
    """500, for a step that failed. What it says stays in the log, except where it is a diagnostic."""
    if isinstance(error, BringupError):
        finding = error.findings[0]
        return Refused(500, f"the request failed: {finding.message}", code=finding.code)
    return Refused(500, "the request failed: a step of the program raised an error, which is in the server's log")
