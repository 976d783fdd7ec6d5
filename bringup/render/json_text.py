"""JSON for other programs: strict RFC 8259."""

from __future__ import annotations

import json
import math
from typing import Any, cast


def json_text(value: object) -> str:
    """A value as indented JSON with a line end.

    JSON has no infinity and no NaN (RFC 8259, section 6): they become the texts "Infinity", "-Infinity" and "NaN", as
    in the JSON format of Protocol Buffers.
    """
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
