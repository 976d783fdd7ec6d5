"""The time of `bringup lora` compared with peft's load of the same adapter.

    python -m benchmarks.lora_convert [--layers N] [--hidden N] [--rank R]

The base is a random Llama; the adapter changes all its linear layers. Times are processor times, the minimum of five
runs. peft: `load_adapter` into a model in memory. bringup: `load_lora` (headers), its arrays, and `convert`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from transformers import AutoModelForCausalLM, LlamaConfig

from bringup.compile.job import open_job
from bringup.compile.lora.convert import convert_lora
from bringup.compile.lora.opening import load_lora
from tests.lora.written import Case, wrapped


def least(run: Callable[[], object], times: int = 5) -> float:
    """Processor seconds of the fastest run."""
    found: list[float] = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def compare(layers: int, hidden: int, rank: int) -> None:
    """Prints the table."""
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, vocab_size=4096,
    )  # fmt: skip
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(place / "base")
        case = Case("llama", {"r": rank, "target_modules": "all-linear"})
        theirs = wrapped(model, case, 0.02)
        theirs.save_pretrained(place / "lora")
        size = (place / "lora" / "adapter_model.safetensors").stat().st_size
        job = open_job(checkpoint=str(place / "base"))

        def load_theirs() -> None:
            theirs.load_adapter(str(place / "lora"), adapter_name="again")
            theirs.delete_adapter("again")

        loaded = load_lora(job, place / "lora")
        figures = {
            "peft, load_adapter": least(load_theirs),
            "bringup, load_lora": least(lambda: load_lora(job, place / "lora")),
            "bringup, arrays": least(lambda: loaded.lora.arrays(loaded.files.checkpoint)),
            "bringup, convert": least(lambda: convert_lora(job, str(place / "lora"), place / "out", force=True)),
        }
    print(f"{layers} layers of {hidden}, rank {rank}: {size / 1e6:.1f} MB")
    for name, seconds in figures.items():
        print(f"{name:20} {seconds * 1e3:8.1f} ms  {seconds / figures['peft, load_adapter']:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    words = parser.parse_args()
    compare(words.layers, words.hidden, words.rank)


if __name__ == "__main__":
    main()
