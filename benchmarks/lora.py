"""A decode step with 0, 1, 8 and 32 LoRAs, and `lora convert` compared with peft's load: `python -m benchmarks.lora`.

A model with random weights is compiled without slots for LoRAs (the base), and with as many slots as a case uses. In
each round every case runs the same step of `--sequences` sequences; the order changes with each round. The output is
the median of the ratios to the base in the same round. The second table is that of benchmarks/lora_convert.py.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bringup
from bringup.compile import Batch, open_job
from bringup.compile.lora.limits import with_slots
from bringup.compile.program.step_inputs import Chunk, make_step
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights
from bringup.graphs.core.step import BLOCK

COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
# hidden, feed-forward, layers, heads, key heads, vocabulary (config.json of each on the Hugging Face hub)
SIZES = {
    "smollm2-135m": (576, 1536, 30, 9, 3, 49152),
    "smollm2-360m": (960, 2560, 32, 15, 5, 49152),
    "llama-3.2-1b": (2048, 8192, 16, 32, 8, 128256),
}
ONE_THREAD = {"llvm": "threads:1", "iree-cpu": "local-sync", "torch": None}  # by target: its device of one thread
LENGTH, CONTEXT = 100, 256  # tokens that each sequence has, and the longest that one can have


def config(name: str, layers: int | None) -> dict[str, Any]:
    hidden, ffn, published, heads, groups, vocabulary = SIZES[name]
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers or published}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary}
    return COMMON | sizes | {"max_position_embeddings": 2048, "tie_word_embeddings": True}


def bundle(folder: Path, args: argparse.Namespace, slots: int) -> Path:
    """The model for `args.sequences` sequences, with slots for LoRAs or without."""
    job = open_job("llama", "dummy", config=config(args.model, args.layers), dtype="float32")
    if slots:
        job = with_slots(job, rank=args.rank, modules=args.modules, count=slots)
    out = folder / f"{slots}.bundle"
    return bringup.build(
        job, out=out, target=args.target, max_seq_len=CONTEXT, buckets=(32,), max_batch_size=args.sequences
    )


def filled(path: Path, count: int, executor: str | None) -> Batch:
    """A batch with random LoRAs in its first `count` slots."""
    batch, draw = bringup.load_batch(path, executor, lora_bytes=1 << 34), np.random.default_rng(1)
    for number in range(count):
        batch.loras.hold(number, random_lora(batch, draw))
        batch.loras.place(number)
    return batch


def random_lora(batch: Batch, draw: np.random.Generator) -> LoraWeights:
    factors: dict[str, LoraFactors] = {}
    for name, shapes in batch.loras.slots.shapes().items():
        factors[name] = LoraFactors(*(draw.standard_normal(shape, np.float32) * 0.02 for shape in shapes))
    return LoraWeights(factors)


def decode(batch: Batch, slots: Sequence[int]) -> Callable[[], object]:
    """One step of decode, each sequence with the LoRA in its slot."""
    entry = max((each for each in batch.interface.entries if each.decode), key=lambda each: each.num_sequences)
    blocks = -(-CONTEXT // BLOCK)
    chunks = [Chunk([7], LENGTH, range(b * blocks, (b + 1) * blocks), b, LENGTH + 1) for b in range(len(slots))]
    step = make_step(chunks, entry, batch.interface)
    if entry.chooses_loras:
        step["lora_slots"] = np.array(slots)
    return lambda: batch.executor.step(entry.name, step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--target", choices=ONE_THREAD, default="llvm")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--modules", nargs="+", default=["q_proj", "k_proj", "v_proj"], metavar="NAME")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--loras", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one-thread", action="store_true", help="one thread, and its CPU time: for a busy machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        executor = ONE_THREAD[args.target] if args.one_thread else None
        base = filled(bundle(folder, args, 0), 0, executor)
        cases = {"base": decode(base, [-1] * args.sequences)}
        for count in args.loras:
            batch = filled(bundle(folder, args, count), count, executor)
            cases[f"{count} slots, {min(count, args.sequences)} LoRAs"] = decode(
                batch, [number % count for number in range(args.sequences)]
            )
            cases[f"{count} slots, none used"] = decode(batch, [-1] * args.sequences)
        report(args, cases)


def report(args: argparse.Namespace, cases: dict[str, Callable[[], object]]) -> None:
    """Rounds of all cases, and each case's median of its ratios to the base."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    clock = time.thread_time if args.one_thread else time.perf_counter
    draw = random.Random(0)
    for round_number in range(args.rounds + 1):
        for name, run in draw.sample(list(cases.items()), len(cases)):
            start = clock()
            run()
            if round_number:  # the first one warms up
                seconds[name].append(clock() - start)
    what = f"{args.model}, {args.layers or 'all'} layers on {args.target}"
    print(f"{what}: {args.sequences} sequences, rank {args.rank} of {', '.join(args.modules)}")
    for name, own in seconds.items():
        ratios = [own_step / base for own_step, base in zip(own, seconds["base"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:24} {min(own) * 1e3:8.1f} ms at best; {statistics.median(ratios):.3f} of the base ({spread})")


if __name__ == "__main__":
    main()
