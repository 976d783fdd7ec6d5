# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""transformers as the independent reference: the same checkpoint, its own loader, its own code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoint import Checkpoint
from bringup.compile.weights_file import write_weights

if TYPE_CHECKING:
    import numpy as np


class Reference:
    """A transformers model of a checkpoint, in `dtype`; attention is its `eager` code."""

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any], dtype: str) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.name = f"transformers {transformers.__version__}"
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
        load = transformers.AutoModelForCausalLM.from_pretrained
        path = Path(checkpoint.provenance.get("path", ""))
        if checkpoint.format == "gguf":
            import_module("accelerate")  # transformers needs it for GGUF, and raises a bare ValueError without it
            self.model = load(str(path.parent), gguf_file=path.name, **options)
        elif path.is_dir() and (path / "config.json").is_file():
            self.model = load(str(path), **options)
        else:
            with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
                _write(checkpoint, config, Path(folder))
                self.model = load(folder, **options)
        self.model.eval()

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Float32 [T, V] of every position."""
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([tokens])).logits[0].float().numpy()

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Greedy tokens after a prompt, by `generate`."""
        import torch

        ids = torch.tensor([tokens])
        model: Any = self.model
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        return made[0, len(tokens) :].tolist()

    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]:
        """The output of every module by its name, in the order in which they end: float32 [T, …]."""
        import torch

        with torch.no_grad():
            return record(self.model, lambda: self.model(torch.tensor([tokens])))


def record(model: Any, run: Any) -> dict[str, np.ndarray]:
    """What each module of a torch model gives while `run` runs, as float32 [T, …]; the first output of several."""
    import torch

    seen: dict[str, np.ndarray] = {}

    def keep(name: str) -> Any:
        def hook(module: object, args: object, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.is_floating_point() and name:
                seen[name] = (first[0] if first.ndim == 3 and first.shape[0] == 1 else first).float().numpy()

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _write(checkpoint: Checkpoint, config: Mapping[str, Any], folder: Path) -> None:
    """The checkpoint as a folder that transformers opens."""
    (folder / "config.json").write_text(json.dumps(dict(config)), "utf-8")
    headers = list(checkpoint.headers.values())
    write_weights(folder / "model.safetensors", headers, lambda name: checkpoint.read(checkpoint.headers[name]))
