"""Memory of a Llama in 4 bits and in bfloat16, measured and as stated: `python -m benchmarks.packed_memory`.

Weights are random. Each bundle runs in a separate process: a prompt of --prompt tokens and eight single tokens. The
memory of the interpreter and the libraries is measured with a bundle of the same form and number of layers whose
matrices have 64 columns, and subtracted. `check --tp 1` and `fit` state the bytes of weights, and `compile --dry-run`
those of the cache as well. The rest of the process's memory is buffers of kernels.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.packed_files import write_gguf
from bringup.adapters.apply.parallel import Parallel
from bringup.compile.bundle.folder import WEIGHTS
from bringup.compile.estimate.fit import fit
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import packed_shares
from bringup.compile.pipeline import build
from bringup.graphs.core.options import GraphOptions

COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
WORDS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
}
RECIPES = {"int4-g32": "int4-g32", "int4-g128": "int4-g128"}
FORMS = ("bfloat16", *RECIPES, *WORDS, "q4_1")
ONE_THREAD = {"torch": None, "cpu": "threads:1", "iree-cpu": "local-sync"}  # by target: the device that it runs on
CHILD = """
import json, sys
from benchmarks.packed_memory import resident
from bringup import load
bundle, device, prompt = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
session = load(bundle, device)
session.prefill([index % 32 for index in range(prompt)])
for token in range(8):
    session.decode(token)
print(json.dumps(resident("weights.safetensors")))
"""


def resident(file: str) -> dict[str, int]:
    """Bytes of this process, from proc(5): the peak, private memory, and the pages that are mapped from `file`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    found = {name: int(status[key].split()[0]) << 10 for name, key in {"peak": "VmHWM", "private": "RssAnon"}.items()}
    mapped, total = False, 0
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        word, *rest = line.split()
        if not word.endswith(":"):
            mapped = line.endswith(file)
        elif mapped and word == "Rss:":
            total += int(rest[0]) << 10
    return found | {"mapped": total}


@dataclass(frozen=True, slots=True)
class Case:
    """A form of a model's weights as a target runs it, in bytes. `floats`: of parameters that stay in bfloat16."""

    form: str
    target: str
    bundle: int
    floats: int
    checked: int
    fitted: int
    stated: int
    run: dict[str, int]
    constant: dict[str, int]

    @property
    def own(self) -> int:
        """The peak less that of the small model."""
        return self.run["peak"] - self.constant["peak"]


def config(args: argparse.Namespace, *, small: bool) -> dict[str, Any]:
    hidden, ffn, vocabulary = (64, 128, 64) if small else (args.hidden, args.ffn, args.vocabulary)
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": args.layers}
    heads = 1 if small else args.hidden // 128
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary}
    return COMMON | sizes | {"max_position_embeddings": 2048, "tie_word_embeddings": False}


def job_of(form: str, words: dict[str, Any], folder: Path) -> Job:
    """Dummy weights in the form's layout, computed in bfloat16."""
    if form == "q4_1":
        return open_job(checkpoint=write_gguf(folder / "q4_1.gguf", words), dtype="bfloat16")
    if form in WORDS:
        group = min(WORDS[form]["group_size"], words["hidden_size"])
        words = words | {"quantization_config": WORDS[form] | {"group_size": group}}
    recipe = RECIPES.get(form)
    recipe = "int4-g32" if recipe and words["hidden_size"] < 128 else recipe
    return open_job("llama", "dummy", config=words, dtype="bfloat16", options=GraphOptions(quantize=recipe))


def measured(job: Job, target: str, args: argparse.Namespace, out: Path) -> dict[str, int]:
    """What a process takes that runs the job's bundle, once it is compiled."""
    build(job, out=out, target=target, max_seq_len=args.context, buckets=(args.prompt,))
    words = [sys.executable, "-c", CHILD, str(out), ONE_THREAD[target] or "", str(args.prompt)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def cases(args: argparse.Namespace, folder: Path) -> Iterator[Case]:
    for form in args.forms:
        for target in args.targets:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                yield case(form, target, args, Path(scratch))


def case(form: str, target: str, args: argparse.Namespace, folder: Path) -> Case:
    constant = measured(job_of(form, config(args, small=True), folder), target, args, folder / "small")
    job = job_of(form, config(args, small=False), folder)
    run = measured(job, target, args, folder / "large")
    whole = Parallel()
    sizes = dry_run(job, target, args.context)
    need = fit(job, 1 << 40, parallel=whole, context=args.context, packed=True)
    outer = (entry for name, entry in job.plan.entries.items() if "embed" in name or "head" in name)
    unquantised = sum(entry.declared.nbytes for entry in outer) if form != "q4_1" else 0
    [checked] = packed_shares(job, whole) or [need.weights]
    return Case(
        form, target, (folder / "large" / WEIGHTS).stat().st_size, unquantised, checked,
        need.weights, sizes.running, run, constant,
    )  # fmt: skip


TITLES = (
    "target", "form", "bundle", "`check`, `fit`", "`--dry-run`", "peak", "of the small model", "difference",
    "over `--dry-run`", "private", "weights mapped", "of bfloat16: bundle", "run", "run, matrices alone",
)  # fmt: skip


def row(each: Case, base: Case | None) -> str:
    """A row of the table, in MB; ratios are to `base`, the same target in bfloat16."""
    counted = _mb(each.checked) if each.checked == each.fitted else f"{each.checked}, {each.fitted}"
    figures = [each.target, each.form, _mb(each.bundle), counted, _mb(each.stated), _mb(each.run["peak"])]
    figures += [_mb(each.constant["peak"]), _mb(each.own), f"{each.own / each.stated - 1:+.1%}"]
    figures += [_mb(each.run["private"] - each.constant["private"]), _mb(each.run["mapped"])]
    if base:
        matrices = (each.own - each.floats) / (base.own - base.floats if each.floats else base.own)
        figures += [f"{each.bundle / base.bundle:.3f}", f"{each.own / base.own:.3f}", f"{matrices:.3f}"]
    return f"| {' | '.join(figures)} |"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=ONE_THREAD, default=["torch", "cpu"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--ffn", type=int, default=2816, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=32, help="tokens that are taken in at once")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|", flush=True)
        plain: dict[str, Case] = {}
        for each in cases(args, Path(folder)):
            if each.form == "bfloat16":
                plain[each.target] = each
            print(row(each, plain.get(each.target)), flush=True)


if __name__ == "__main__":
    main()
