"""Checkpoints of TensorRT-LLM: one file for each rank, and a config.json with the division of the model.

Format: docs/source/architecture/checkpoint.md of NVIDIA/TensorRT-LLM: `rank0.safetensors`, `rank1.safetensors`, …, and
`mapping` in config.json with `world_size`, `tp_size` and `pp_size`. Every rank uses the same names, layers numbered
from 0 in each stage. How a tensor is divided depends on the tensor (rows, columns, heads of q, k and v), so it is
defined by an adapter's rules (`trtllm/ranks.py`): here each tensor's name has its rank as a prefix,
`rank1.lm_head.weight`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.adapters.checkpoints.files import entries, is_local
from bringup.adapters.checkpoints.reader import Contents, Ranks
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.trtllm.config_keys import published
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.grouping import some
from bringup.spec import TensorInfo

RANK = re.compile(r"rank(0|[1-9]\d{0,4})\.safetensors")
SIZES = ("tp_size", "pp_size")
MAX_RANKS = 10_000


class RankFilesReader:
    """A folder of TensorRT-LLM: all ranks as one checkpoint."""

    name = "trtllm"

    def detects(self, path: Path, head: bytes) -> bool:
        if head or not is_local(path):
            return False
        try:
            return any(RANK.fullmatch(name) for name in entries(path)) and type(_config(path).get("mapping")) is dict
        except (BringupError, OSError):
            return False

    def open(self, path: Path) -> Contents:
        words = _config(path)
        size = _world_size(path, cast("dict[str, Any]", words["mapping"]))
        there = {int(found[1]): path / name for name in entries(path) if (found := RANK.fullmatch(name))}
        headers: dict[str, TensorInfo] = {}
        for rank, file in sorted(there.items()):
            for name, info in read_header(file).items():
                headers[f"rank{rank}.{name}"] = info._replace(name=f"rank{rank}.{name}")
        missing = [f"rank{rank}.safetensors" for rank in range(size) if rank not in there]
        extra = [f"rank{rank}.safetensors" for rank in sorted(there) if rank >= size]
        findings: list[Diagnostic] = []
        if missing or extra:
            message = f"`{path}` is divided among {size} ranks by its config.json; "
            message += f"it lacks {some(missing)}" if missing else f"it also has {some(extra)}"
            help = "fetch the files of every rank into the folder" if missing else "remove files of other divisions"
            findings.append(Diagnostic(code="BU229", message=message, help=help, file=str(path), lost=bool(missing)))
        return Contents(headers=headers, config=published(words), ranks=Ranks("trtllm", words), findings=findings)


def stated_ranks(folder: Path) -> int:
    """The number of ranks that TensorRT-LLM's config.json states; 0 for a folder without one."""
    try:
        mapping = _config(folder).get("mapping")
        return _world_size(folder, cast("dict[str, Any]", mapping)) if isinstance(mapping, dict) else 0
    except (BringupError, OSError):
        return 0


def _config(folder: Path) -> dict[str, Any]:
    return read_config(folder / "config.json")


def _world_size(folder: Path, mapping: dict[str, Any]) -> int:
    """The number of ranks. Raises BU229."""
    numbers = [mapping.get(name, 1) for name in SIZES]
    product = mapping.get("world_size")
    if not all(type(number) is int and 0 < number <= MAX_RANKS for number in numbers):
        raise _bad(folder, "`tp_size` and `pp_size` are not numbers of ranks")
    size, groups = numbers[0] * numbers[1], mapping.get("moe_ep_size", 1)
    if type(groups) is not int or groups < 1 or numbers[0] % groups:
        raise _bad(folder, "`moe_ep_size` does not divide `tp_size`")
    if product not in (None, size) or size > MAX_RANKS:
        raise _bad(folder, f"`world_size` is {product!r}, and tp_size times pp_size is {size}")
    return size


def _bad(folder: Path, why: str) -> BringupError:
    help = "fetch config.json again, or convert the published checkpoint again"
    return fail("BU229", f"the `mapping` of `{folder / 'config.json'}` is wrong: {why}", help=help, file=str(folder))
