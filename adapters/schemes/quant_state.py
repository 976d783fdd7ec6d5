"""The scales of four-bit matrices of bitsandbytes, with the JSON that is stored with them.

bitsandbytes 0.50 (functional.py): `QuantState.as_dict` writes the JSON, `QuantState.from_dict` reads it. `shape` and
`dtype` are those of the matrix that was quantised; bitsandbytes dequantises to them, whatever the model declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bringup.diagnostics import BringupError, fail
from bringup.shown import shown

if TYPE_CHECKING:
    import numpy as np

NESTED_BLOCK = 256  # scales that share one
LONGEST = 10_000  # bytes of JSON; published ones have 200
TRANSPOSED = "a shape with columns before rows"
SHAPE = "the rows and columns of the matrix"
DTYPES = ("float16", "bfloat16", "float32")  # of the matrix (`quantize_4bit`)


@dataclass(frozen=True, slots=True)
class State:
    """What the JSON has to say: the table and the block that codes are decoded with, and the matrix [rows, columns]."""

    table: str
    block: int
    rows: int
    columns: int

    def read(self, state: np.ndarray, **nested: object) -> Mapping[str, object]:
        """The keys and values of the JSON's bytes. Raises BU115 if one contradicts tensors, config or graph.

        `nested` are the keys of scales that are quantised too, with their values; without any, it must not have them.
        """
        words = _parsed(state)
        for key, value in {"quant_type": self.table, "blocksize": self.block, **nested}.items():
            if json.dumps(words.get(key)) != json.dumps(value):
                raise _wrong(f"{key} {shown(words.get(key))}", repr(value))
        if not nested and (key := next((key for key in words if key.startswith("nested_")), "")):
            raise _wrong(f"{key} {shown(words[key])}", "scales that are not quantised")
        if words.get("dtype") not in DTYPES:
            raise _wrong(f"dtype {shown(words.get('dtype'))}", " or ".join(DTYPES))
        found, shape = json.dumps(words.get("shape")), [self.rows, self.columns]
        if found != json.dumps(shape):  # matrices of all sizes get one message, so that they are one finding
            raise _wrong(
                f"shape {shown(words.get('shape'))}" if found != json.dumps(shape[::-1]) else TRANSPOSED, SHAPE
            )
        return words


@dataclass(frozen=True, slots=True)
class Scales:
    """Called with scales float32 [n] and the JSON's bytes: the scales. Raises BU115 if the JSON contradicts them."""

    state: State

    def __call__(self, scales: np.ndarray, state: np.ndarray) -> np.ndarray:
        self.state.read(state)
        return scales


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Called with codes uint8 [n], scales float32 [n / 256], table float32 [256] and the JSON's bytes: float32 [n].

    Raises BU115 as `Scales` does.
    """

    state: State

    def __call__(self, codes: np.ndarray, scales: np.ndarray, table: np.ndarray, state: np.ndarray) -> np.ndarray:
        import numpy as np

        words = self.state.read(state, nested_blocksize=NESTED_BLOCK, nested_dtype="float32")
        offset = words.get("nested_offset")
        largest = float(np.finfo(np.float32).max)
        if not isinstance(offset, float | int) or isinstance(offset, bool) or not -largest <= offset <= largest:
            raise _wrong(f"nested_offset {shown(offset)}", "a number in the range of float32")
        return table[codes] * scales.repeat(NESTED_BLOCK)[: len(codes)] + np.float32(offset)


def _parsed(state: np.ndarray) -> Mapping[str, object]:
    try:
        words = cast("object", json.loads(state.tobytes()[:LONGEST]))
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise _wrong(f"JSON {shown(state.tobytes()[:40])}", "an object")
    return cast("dict[str, object]", words)


def _wrong(found: str, wanted: str) -> BringupError:
    return fail(
        "BU115",
        f"bitsandbytes' `quant_state` has {found}; the tensors, the config and the graph need {wanted}",
        help="save the checkpoint again: its scales belong to other codes, or its config to another model",
    )
