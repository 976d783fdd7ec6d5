"""The scales of four-bit matrices of bitsandbytes, with the JSON that is stored with them (`QuantState.as_dict`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bringup.diagnostics import BringupError, fail
from bringup.shown import shown

if TYPE_CHECKING:
    import numpy as np

NESTED_BLOCK = 256  # scales that share one
LONGEST = 10_000  # bytes of JSON; published ones have 200


@dataclass(frozen=True, slots=True)
class Scales:
    """Called with scales float32 [n] and the JSON's bytes: the scales. Raises BU115 if the JSON contradicts them.

    `table` and `block` are those that codes are decoded with.
    """

    table: str
    block: int

    def __call__(self, scales: np.ndarray, state: np.ndarray) -> np.ndarray:
        _state(state, quant_type=self.table, blocksize=self.block)
        return scales


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Called with codes uint8 [n], scales float32 [n / 256], table float32 [256] and the JSON's bytes: float32 [n].

    Raises BU115 as `Scales` does.
    """

    table: str
    block: int

    def __call__(self, codes: np.ndarray, scales: np.ndarray, table: np.ndarray, state: np.ndarray) -> np.ndarray:
        import numpy as np

        words = _state(state, quant_type=self.table, blocksize=self.block, nested_blocksize=NESTED_BLOCK)
        offset = words.get("nested_offset")
        if not isinstance(offset, float | int) or isinstance(offset, bool):
            raise _wrong("nested_offset", offset, "a number")
        return table[codes] * scales.repeat(NESTED_BLOCK)[: len(codes)] + np.float32(offset)


def _state(state: np.ndarray, **wanted: object) -> dict[str, object]:
    """The JSON's keys and values. Raises BU115 if one is not as expected."""
    try:
        words = cast("object", json.loads(state.tobytes()[:LONGEST]))
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise _wrong("JSON", state.tobytes()[:40], "an object")
    found = cast("dict[str, object]", words)
    for key, value in wanted.items():
        if found.get(key) != value:
            raise _wrong(key, found.get(key), repr(value))
    return found


def _wrong(key: str, value: object, wanted: str) -> BringupError:
    return fail(
        "BU115",
        f"bitsandbytes' `quant_state` has {key} {shown(value)}; the tensors and the config need {wanted}",
        help="save the checkpoint again: its scales belong to other codes, or its `quantization_config` is wrong",
    )
