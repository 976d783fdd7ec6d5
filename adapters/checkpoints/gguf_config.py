"""The hyperparameters of a GGUF file: the metadata of its architecture, and the tensors that dialects read.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#llm and LLM_KV_NAMES in llama.cpp's `llama-arch.cpp`.
Each family's dialect (adapters/dialects) translates them to keys of config.json.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.adapters.checkpoints.gguf import MOST_NAME, Metadata, bad_header, oversized
from bringup.spec import TensorInfo

TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
MOST_NUMBERS = 1 << 12  # in a hyperparameter: one for each layer, or for each pair of a head's channels


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The metadata of a file that describe its model.

    `values` are by the key without the architecture's name: `block_count`, not `llama.block_count`. `tokens` are the
    ids that a config.json has as well; `vocab` is the number of tokens, None if the file has none.
    """

    path: Path
    architecture: str
    values: Mapping[str, Any]
    tokens: Mapping[str, Any]
    vocab: int | None
    tensors: Mapping[str, TensorInfo]

    def unread(self) -> dict[str, Any]:
        """The keys that no dialect has translated to config.json: llama.cpp's own."""
        return {"architectures": [f"{self.architecture} (GGUF)"], **self.values, **self.tokens}

    def numbers(self, tensor: str) -> tuple[float, ...] | None:
        """The values of a small float32 tensor with settings; None if there is no such tensor."""
        info = self.tensors.get(tensor)
        if info is None or info.dtype != "float32" or info.nbytes > 4 * MOST_NUMBERS:
            return None
        with self.path.open("rb") as file:
            file.seek(info.offset)
            return struct.unpack(f"<{info.nbytes // 4}f", file.read(info.nbytes // 4 * 4))


def read_hyperparameters(meta: Metadata, tensors: Mapping[str, TensorInfo]) -> Hyperparameters:
    """From a file's metadata and tensor headers. Raises BU221, BU225."""
    architecture = meta.scalar("general.architecture")
    if not isinstance(architecture, str) or len(architecture) > MOST_NAME:
        raise bad_header(meta.path, "`general.architecture` is not the name of an architecture")
    keys = [key for key in meta if key.startswith(f"{architecture}.")]
    if long := [key for key in keys if (meta.count(key) or 0) > MOST_NUMBERS]:
        raise oversized(meta.path, f"{meta.count(long[0]):,} elements under `{long[0]}`; the limit is {MOST_NUMBERS:,}")
    embedding = tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding and embedding.shape else None
    return Hyperparameters(
        path=meta.path,
        architecture=architecture,
        values={key.removeprefix(f"{architecture}."): shortest(meta[key]) for key in keys},
        tokens={word: meta.scalar(key) for key, word in TOKENS.items() if key in meta},
        vocab=meta.count("tokenizer.ggml.tokens") or rows,
        tensors=tensors,
    )


def shortest(value: object) -> Any:
    """A float32 as the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06."""
    if not isinstance(value, float) or not abs(value) < 1e38:
        return value
    stored = struct.pack("<f", value)
    wide = struct.unpack("<f", stored)[0] != value  # a float64 in the file
    short = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return value if wide else next(number for number in short if struct.pack("<f", number) == stored)
