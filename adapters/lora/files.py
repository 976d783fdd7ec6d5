"""The files of an adapter: its tensors by their headers, its config, and the spelling of their names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.file_states import states_before, states_of
from bringup.adapters.checkpoints.files import is_named, unreadable
from bringup.adapters.checkpoints.gguf import Metadata
from bringup.adapters.checkpoints.gguf_tensors import read_gguf
from bringup.adapters.checkpoints.reader import read_loaded, read_mapped
from bringup.adapters.lora import megatron
from bringup.adapters.lora.config import FILE, LoraConfig, is_alpha, read_lora_config
from bringup.adapters.lora.mlx import is_mlx, read_mlx_config
from bringup.adapters.lora.spelling import SPELLINGS, Spelling
from bringup.adapters.sources.open_checkpoint import open_path
from bringup.diagnostics import Diagnostic, fail
from bringup.shown import shown
from bringup.system.os_errors import reason

MAGIC = b"GGUF"
REQUESTS = ("lora.safetensors", "model.lora_weights.npy")  # of `bringup lora convert`, of TensorRT-LLM's script
NAMES = ("adapter_model.safetensors", "adapters.safetensors", "adapter_model.bin")  # of peft, MLX, older peft


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFiles:
    """`base` is the base model that the files name: a name or a path, "" without one.

    `architecture` is that of a GGUF adapter, whose names are llama.cpp's. `findings` are rejected keys of the config.
    """

    path: Path
    checkpoint: Checkpoint
    config: LoraConfig
    spelling: Spelling
    base: str = ""
    architecture: str = ""
    findings: Sequence[Diagnostic] = ()


def open_lora(path: str | os.PathLike[str]) -> LoraFiles:
    """An adapter: a folder of peft or mlx-lm, a GGUF file of llama.cpp, or tensors of Megatron-Bridge next to their
    run_config.yaml. Only headers are read.

    Raises BU034 for a path that does not exist, BU160 and BU161 for its config, BU2xx for invalid files (BU233 for
    unreadable ones).
    """
    place = Path(path)
    try:
        place.stat()
    except FileNotFoundError:
        help = "name a folder with adapter_config.json, or a GGUF file"
        raise fail("BU034", f"no such file or folder: `{place}`", help=help, file=str(place)) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise unreadable(place, f"cannot be opened: {reason(error)}") from None
    if place.is_file() and _is_gguf(place):
        return _gguf(place)
    folder = place if place.is_dir() else place.parent
    if (run := folder / megatron.FILE).is_file() and not (folder / FILE).is_file():
        return LoraFiles(
            path=place,
            checkpoint=open_path(place, str(place)),
            config=megatron.read_run_config(run),
            spelling=SPELLINGS["megatron"],
        )
    words = _words(folder, place)
    weights = place if place.is_file() else next((folder / name for name in NAMES if (folder / name).is_file()), folder)
    checkpoint = replace(open_path(weights, str(place)), config=words)
    file = str(folder / FILE)
    if is_mlx(words):
        config, findings = read_mlx_config(words, file)
        return LoraFiles(
            path=place, checkpoint=checkpoint, config=config, spelling=SPELLINGS["mlx"], findings=findings,
            base=_text(words.get("model")),
        )  # fmt: skip
    config, findings = read_lora_config(words, file)
    return LoraFiles(
        path=place, checkpoint=checkpoint, config=config, spelling=SPELLINGS["peft"], findings=findings,
        base=_text(words.get("base_model_name_or_path")),
    )  # fmt: skip


def _text(value: object) -> str:
    """A text of a config; \"\" for any other value."""
    return value if isinstance(value, str) else ""


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _words(folder: Path, place: Path) -> Mapping[str, Any]:
    """adapter_config.json of the folder of a `place`. Raises BU160, and BU233 for one that is no regular file."""
    file = folder / FILE
    help = "name the folder that peft's `save_pretrained` wrote; rank and scale are in that file only"
    if not is_named(file):
        message = f"`{place}` has no {FILE}{'' if place is folder else ' next to it'}"
        if any((folder / name).is_file() for name in REQUESTS):
            help = (
                f"these are the tensors of a request: bringup lora convert {folder} --to peft --checkpoint BASE -o DIR"
            )
        raise fail("BU160", message, help=help, file=str(place))
    try:
        return read_json(file)
    except ValueError as error:
        raise fail("BU160", f"`{file}` is not readable: {error}", help=help, file=str(file)) from None


def _gguf(path: Path) -> LoraFiles:
    """Keys: `Keys.Adapter` of gguf-py's constants.py; scale: `llama_adapter_lora_weight::get_scale` of llama.cpp."""
    before = states_before(path)
    meta, headers = read_gguf(path)
    kind = str(meta.scalar("adapter.type") or "") if "adapter.type" in meta else ""
    if kind != "lora":
        message = f"`{path}` is not a LoRA: its `adapter.type` is `{kind}`" if kind else f"`{path}` is not an adapter"
        help = "name a file that llama.cpp's convert_lora_to_gguf.py wrote"
        raise fail("BU161", message, help=help, file=str(path))
    provenance = {"source": str(path), "path": str(path.resolve())}
    checkpoint = Checkpoint(
        source=str(path), format="gguf", headers=headers, config={}, read=read_mapped, load=read_loaded,
        provenance=provenance, files=states_of([path], before),
    )  # fmt: skip
    return LoraFiles(
        path=path, checkpoint=checkpoint, config=LoraConfig(rank=0, alpha=_alpha(path, meta)),
        spelling=SPELLINGS["gguf"], architecture=str(meta.scalar("general.architecture") or ""),
    )  # fmt: skip


def _alpha(path: Path, meta: Metadata) -> float:
    alpha = meta.scalar("adapter.lora.alpha") if "adapter.lora.alpha" in meta else None
    if not is_alpha(alpha):
        help = "download the file again; the scale follows from this key"
        what = "has no `adapter.lora.alpha`" if alpha is None else f"has `adapter.lora.alpha` {shown(alpha)}"
        raise fail("BU160", f"`{path}` {what}", help=help, file=str(path))
    return float(cast("float", alpha))
