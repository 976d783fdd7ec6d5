"""`bringup.adapt` next to safetensors and transformers, on a checkpoint of 4 GiB whose pages are in memory.

    python benchmarks/adapt.py FOLDER [--gib 4] [--rounds 5]

FOLDER gets a Llama and a Mixtral of random bfloat16 weights, once. Everything runs in one process, interleaved, round
by round; what is printed is the median of each round's ratio, for other programs run on the machine too. Reading is a
maximum over all words of 8 bytes. The peer of moved bytes is a copy by as many threads into fresh huge pages.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import bringup
from bringup.adapters import Adapter, S, fused, lay_out, materialise
from bringup.adapters.apply.materialise import THREADS, untouched
from bringup.adapters.planning.plan import Plan

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = LLAMA | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 3584,
                   "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
GIB = 1 << 30


def checkpoint(folder: Path, words: Mapping[str, Any], gib: float) -> Path:
    """A folder with random weights of about `gib` GiB, in shards of 1 GiB as libraries write them."""
    if (folder / "config.json").is_file():
        return folder
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    one, two = (_nbytes(words | {"num_hidden_layers": layers}) for layers in (1, 2))
    words = {**words, "num_hidden_layers": max(1, round((gib * GIB - 2 * one + two) / (two - one)))}
    job = bringup.open_job(checkpoint="dummy", model=words["model_type"], config=words, dtype="bfloat16")
    rng, shard, index, size, number = np.random.default_rng(0), {}, {}, 0, 0
    infos = list(job.checkpoint.headers.values())
    for info in infos:
        array = rng.integers(0, 1 << 16, int(np.prod(info.shape)), np.uint16)
        array &= np.uint16(0xBFFF)  # no NaN and no infinity
        shard[info.name] = array.view(bf16()).reshape(info.shape)
        index[info.name] = f"model-{number:05}.safetensors"
        size += array.nbytes
        if size > GIB or info is infos[-1]:
            save_file(shard, folder / f"model-{number:05}.safetensors", metadata={"format": "pt"})
            shard, size, number = {}, 0, number + 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(words))
    return folder


def bf16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def _nbytes(words: Mapping[str, Any]) -> int:
    job = bringup.open_job(checkpoint="dummy", model=words["model_type"], config=words, dtype="bfloat16")
    return sum(declared.nbytes for declared in job.graph.signature().values())


def read_all(arrays: Mapping[str, np.ndarray]) -> None:
    """Touches every byte, in the order of the dict."""
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8)
        flat[: flat.size // 8 * 8].view(np.uint64).max()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def with_processor_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and the seconds of processor time of this thread: what a busy machine does not stretch."""
    start = time.thread_time()
    result = work()
    return result, time.thread_time() - start


def threaded_copy(sources: list[np.ndarray]) -> list[Any]:
    """Each source in fresh anonymous memory of huge pages, by as many threads as `materialise` has."""

    def one(source: np.ndarray) -> Any:
        flat = source.reshape(-1).view(np.uint8)
        room = mmap.mmap(-1, flat.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.madvise(mmap.MADV_HUGEPAGE)
        out = np.frombuffer(room, np.uint8)
        np.copyto(out, flat)
        return out

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, sources))


def anonymous() -> int:
    """Bytes of anonymous memory of this process: RssAnon of proc(5)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def torch_arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    import torch

    return {name: tensor.view(torch.int16).numpy() for name, tensor in tensors.items()}


def load_safetensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def clone_safetensors(folder: Path) -> dict[str, Any]:
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            found |= {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  not a dict
    return found


def from_pretrained(folder: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()


def unmoved(folder: Path, rounds: int) -> dict[str, float]:
    """Weights as the graph has them: nothing moves."""
    rows: dict[str, list[float]] = {
        name: [] for name in ("returns ms", "its CPU ms", "anonymous MiB", "of safetensors' reading")
    }
    peers: dict[str, Callable[[Path], dict[str, Any]]] = {
        "of load_file": load_safetensors, "of from_pretrained": from_pretrained,
        "of get_tensor().clone()": clone_safetensors,
    }  # fmt: skip
    rows |= {name: [] for name in peers}
    bringup.adapt(bringup.open_job(checkpoint=folder))  # imports
    for _ in range(rounds):
        job = bringup.open_job(checkpoint=folder)
        before = anonymous()
        call, (arrays, busy) = timed(lambda job=job: with_processor_time(lambda: bringup.adapt(job)))
        rows["its CPU ms"].append(busy * 1e3)
        reading = timed(lambda arrays=arrays: read_all(arrays))[0]
        rows["returns ms"].append(call * 1e3)
        rows["anonymous MiB"].append((anonymous() - before) / (1 << 20))
        del arrays, job
        for name, load in peers.items():
            loading, tensors = timed(lambda load=load: load(folder))
            theirs = timed(lambda tensors=tensors: read_all(torch_arrays(tensors)))[0]
            rows[name].append((loading + theirs) / (call + reading))
            if name == "of load_file":
                rows["of safetensors' reading"].append(theirs / reading)
            del tensors
    return {name: statistics.median(values) for name, values in rows.items()}


def moved(folder: Path, plan_of: Callable[[Plan], Plan], rounds: int) -> dict[str, float]:
    """Moved bytes a second, as a share of a threaded copy of as many bytes of the same tensors.

    By the clock, and by the processor's time outside the kernel: the kernel's time for fresh pages is the same work for
    both, and changes tenfold with how much memory it finds in one piece.
    """
    job = bringup.open_job(checkpoint=folder)
    plan = plan_of(job.plan)
    names = [name for name, entry in plan.entries.items() if not untouched(entry)]
    nbytes = sum(plan.entries[name].declared.nbytes for name in names)
    infos = {info.name: info for name in names for info in plan.entries[name].tensors}
    ratios, outside, memory = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        sources = [job.checkpoint.read(info) for info in infos.values()]
        read_all({str(at): source for at, source in enumerate(sources)})
        start = os.times().user
        copying, copies = timed(lambda sources=sources: threaded_copy(sources))
        copying_outside = os.times().user - start
        size = sum(copy.nbytes for copy in copies)
        del copies
        gc.collect()
        before = anonymous()
        start = os.times().user
        seconds, arrays = timed(lambda: materialise(plan, job.checkpoint, only=names))
        outside.append((nbytes / (os.times().user - start)) / (size / copying_outside))
        memory.append((anonymous() - before - nbytes) / (1 << 20))
        del arrays
        ratios.append((nbytes / seconds) / (size / copying))
    return {
        "moved GiB": nbytes / GIB,
        "of a threaded copy": statistics.median(ratios),
        "by processor time outside the kernel": statistics.median(outside),
        "more MiB": max(memory),
    }


def transposed(plan: Plan) -> Plan:
    """Every matrix of the layers the other way round, as Conv1D and JAX store them."""
    table = Adapter("transposed")
    for x in ("q", "k", "v", "o", "gate", "up", "down"):
        table[f"{{p:**}}.{x}_proj.transposed"] = S(f"{{p}}.{x}_proj.weight").mv("out in -> in out")
    return lay_out(plan, table)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--gib", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    llama = checkpoint(given.folder / "llama", LLAMA, given.gib)
    mixtral = checkpoint(given.folder / "mixtral", MIXTRAL, given.gib / 4)
    print("## nothing moves\n", unmoved(llama, given.rounds), flush=True)
    print(
        "## q, k, v and gate, up fused\n", moved(llama, lambda plan: lay_out(plan, fused()), given.rounds), flush=True
    )
    print("## transposed\n", moved(llama, transposed, given.rounds), flush=True)
    print("## experts stacked\n", moved(mixtral, lambda plan: plan, given.rounds), flush=True)


if __name__ == "__main__":
    main()
