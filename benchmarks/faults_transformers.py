"""The reports of transformers for checkpoint folders: `from_pretrained`, and one forward pass of 12 tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from faults_each import each

sys.path.pop(0)  # benchmarks: its kernels.py is not the package `kernels`, which transformers imports


def load(folder: Path, _: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(torch.arange(12)[None]).logits
    np.save(folder / "logits.npy", logits.float().numpy())


if __name__ == "__main__":
    each(sys.argv[1:], load)
