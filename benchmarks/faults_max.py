"""The reports of MAX for checkpoint folders: a graph in its Python API, with the weights of the folder.

faults.py runs this with an interpreter that has `max` and `safetensors`: `python faults_max.py FOLDER,GRAPHS …`. GRAPHS
is faults_max_graphs.py or a copy of it with a mistake. The adapter is what a user of the API would write: it removes
the first component of names and transposes Conv1D weights. `compile` checks names and shapes.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from faults_each import each
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor, TensorType, defaults
from safetensors import safe_open


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of `model.safetensors`, or of the files that the index names. Raises KeyError for a missing one."""
    index = folder / "model.safetensors.index.json"
    owners = json.loads(index.read_text("utf-8"))["weight_map"] if index.exists() else {}
    found: dict[str, np.ndarray] = {}
    for name in sorted(set(owners.values())) or ["model.safetensors"]:
        with safe_open(folder / name, framework="np") as file:
            found |= {key: file.get_tensor(key) for key in file.keys() if owners.get(key, name) == name}  # noqa: SIM118
    lost = [name for name in owners if name not in found]
    if lost:
        raise KeyError(lost[0])
    return found


def load(folder: Path, graphs: str) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    graph = runpy.run_path(graphs)["GRAPHS"][config["model_type"]]
    weights: dict[str, Any] = {}
    for name, array in tensors(folder).items():
        turned = array.T if name.endswith(graph.conv1d) else array
        weights[name.removeprefix(graph.root)] = np.ascontiguousarray(turned)
    device = defaults()[1].devices[0]
    with F.lazy():
        model = graph(config)
    run = model.compile(TensorType(DType.int64, [1, "t"], device=device), weights=weights)
    tokens = np.arange(12, dtype=np.int64)[None]
    logits = np.from_dlpack(run(Tensor(tokens, dtype=DType.int64, device=device)).to_numpy())
    np.save(folder / "logits.npy", logits)


if __name__ == "__main__":
    each(sys.argv[1:], load)
