"""The names of the files of a format in a folder, by the conventions of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from bringup.adapters.checkpoints.safetensors import read_header
from bringup.spec import TensorInfo

ADAPTER, ADAPTER_CONFIG = "adapter_model", "adapter_config.json"  # peft's names (peft/utils/constants.py)
# Files that transformers' Trainer, accelerate and DeepSpeed write next to the weights; they are not part of a model.
TRAINING = (
    "training_args.*", "optimizer*", "scheduler*", "scaler*", "rng_state*", "random_states*", "trainer_state*",
    "*optim_states*", "*.distcp",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """The names of a format: its index, the file of an unsplit model, the suffixes of all files; its reader."""

    index: str
    single: str
    suffixes: tuple[str, ...]
    read: Callable[[Path], Mapping[str, TensorInfo]]

    def holds(self, name: str) -> bool:
        """Whether a file has weights, by the suffix of its name; the files of a training run have none."""
        return name.endswith(self.suffixes) and not is_training_file(name)


def is_training_file(name: str) -> bool:
    """Whether a file has the state of a training run, by the names that trainers use."""
    return any(fnmatch(name, pattern) for pattern in TRAINING)


SAFETENSORS = FolderLayout("model.safetensors.index.json", "model.safetensors", (".safetensors",), read_header)
TORCH_INDEX, TORCH_SINGLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
TORCH_SUFFIXES = (".bin", ".pt", ".pth")
