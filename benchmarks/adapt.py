"""`bringup.adapt` compared with safetensors and transformers, on a checkpoint of 4 GiB that is in the page cache.

    python -m benchmarks.adapt FOLDER [--gib 4] [--rounds 5]

FOLDER gets a Llama and a Mixtral with random bfloat16 weights, once. All contenders run in one process, in rounds, each
round in another order. The output is the median of the ratios of each round, because other programs may run on the
machine. Arrays are read by the maximum over all words of 8 bytes. Moved bytes are compared with a copy by the same
number of threads into new huge pages.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import resource
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


def busy(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of the clock, seconds of processor time of all threads, and a result."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds, result = timed(work)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


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


def rotated(contenders: list[str], by: int) -> list[str]:
    """The same in another order: the first of a round comes after the release of gigabytes, which slows it down."""
    by %= len(contenders)
    return contenders[by:] + contenders[:by]


def unmoved(folder: Path, rounds: int) -> dict[str, float]:
    """Weights as the graph has them: nothing moves. Reading is compared by processor time too."""
    peers: dict[str, Callable[[Path], dict[str, Any]]] = {
        "of load_file": load_safetensors, "of from_pretrained": from_pretrained,
        "of get_tensor().clone()": clone_safetensors,
    }  # fmt: skip
    rows: dict[str, list[float]] = {}
    bringup.adapt(bringup.open_job(checkpoint=folder))  # imports
    for at in range(rounds):
        found: dict[str, tuple[float, float, float]] = {}  # seconds of both, of reading, and its processor time
        figures: dict[str, float] = {}
        for name in rotated(["", *peers], at):
            if name:
                loading, _, tensors = busy(lambda load=peers[name]: load(folder))
                arrays = torch_arrays(tensors)
            else:
                job, before = bringup.open_job(checkpoint=folder), anonymous()
                loading, processor, tensors = busy(lambda job=job: bringup.adapt(job))
                arrays = tensors
                figures |= {"returns ms": loading * 1e3, "its CPU ms": processor * 1e3}
                del job
            reading, processor, _ = busy(lambda arrays=arrays: read_all(arrays))
            found[name] = loading + reading, reading, processor
            if not name:
                figures["anonymous MiB"] = (anonymous() - before) / (1 << 20)
            del arrays, tensors
        ours, theirs = found[""], found["of load_file"]
        figures |= {"of safetensors' reading": theirs[1] / ours[1], "by processor time": theirs[2] / ours[2]}
        figures |= {name: found[name][0] / ours[0] for name in peers}
        for name, figure in figures.items():
            rows.setdefault(name, []).append(figure)
    return {name: statistics.median(values) for name, values in rows.items()}


def moved(folder: Path, plan_of: Callable[[Plan], Plan], rounds: int) -> dict[str, float]:
    """Moved bytes a second, as a share of a threaded copy of as many bytes of the same tensors.

    By the clock, and by processor time. Both spend the kernel's time for fresh pages, which changes tenfold with how
    much memory it finds in one piece.
    """
    job = bringup.open_job(checkpoint=folder)
    plan = plan_of(job.plan)
    names = [name for name, entry in plan.entries.items() if not untouched(entry)]
    nbytes = sum(plan.entries[name].declared.nbytes for name in names)
    infos = {info.name: info for name in names for info in plan.entries[name].tensors}
    shares = ("of a threaded copy", "by processor time")
    rows: dict[str, list[float]] = {name: [] for name in shares}
    memory = list[float]()
    for at in range(rounds):
        sources = [job.checkpoint.read(info) for info in infos.values()]
        read_all({str(at): source for at, source in enumerate(sources)})
        contenders: dict[str, Callable[[], list[Any]]] = {
            "copy": lambda sources=sources: threaded_copy(sources),
            "adapt": lambda: list(materialise(plan, job.checkpoint, only=names).values()),
        }
        speeds: dict[str, list[float]] = {}
        for name in rotated([*contenders], at):
            before = anonymous()
            seconds, processor, arrays = busy(contenders[name])
            size = sum(array.nbytes for array in arrays)
            if name == "adapt":
                memory.append((anonymous() - before - nbytes) / (1 << 20))
            speeds[name] = [size / spent for spent in (seconds, processor)]
            del arrays
        for name, ours, theirs in zip(shares, speeds["adapt"], speeds["copy"], strict=True):
            rows[name].append(ours / theirs)
    return {
        "moved GiB": nbytes / GIB,
        **{name: statistics.median(values) for name, values in rows.items()},
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
