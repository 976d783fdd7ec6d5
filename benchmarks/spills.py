"""Compiles every kernel of known models for NVIDIA's architectures, and writes a table of those that spill registers.

`python -m benchmarks.spills --out benchmarks/results/…-spills.md` needs no GPU. Results are saved in a JSON file next
to the page, by the version of Triton that is installed: an interrupted run resumes, and runs with other versions add to
the same table. For another version, put its folder first on PYTHONPATH. A result counts until the kernel's settings or
its source change. `--minutes` limits the time, `--kernel NAME` the kernels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.kernels import CONTEXT, TOKENS, configurations
from benchmarks.layer_kernels import MODELS, Model, every_kernel
from bringup.compile.cache.store import key_of
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.kernel_key import inputs_of
from bringup.compile.kernels.resources import resources

NVIDIA = tuple(filter(is_nvidia, ARCHITECTURES))
SEQUENCES = (1, 4)  # of decode
AT_ONCE = 96  # kernels that are compiled before results are saved
KINDS = {
    "products": (
        "linear", "linear_tile", "linear_panels", "hopper.linear_specialised", "quant.fp8_linear", "quant.quant_linear",
        "quant.quant_linear_tile",
    ),
    "attention": ("attention_decode", "attention_prefill", "hopper.attention_specialised", "head_product"),
    "sorting by expert": ("rows_of_experts", "to_blocks"),
    "elements and norms": ("elements",),
    "sampling": ("largest", "draw"),
}  # fmt: skip
KIND_OF = {stem: kind for kind, stems in KINDS.items() for stem in stems}
# The layers and vocabularies of the models whose tables in docs/kernels.md have one layer and 512 tokens.
COMPLETE = {
    "Llama 3.2 1B": {"vocab_size": 128_256},
    "Qwen3 0.6B": {"vocab_size": 151_936},
    "gpt-oss, 8 experts": {"vocab_size": 201_088, "num_hidden_layers": 2},
    "Llama 3 8B, float8 in blocks": {"vocab_size": 128_256},
    "Llama 3 8B, float8 by matrix": {"vocab_size": 128_256},
}
MORE = (
    Model("GPT-2 124M", "gpt2", "GPT2LMHeadModel", {"n_layer": 1, "n_positions": CONTEXT, "vocab_size": 50_257}),
    Model(
        "Gemma 3 1B", "gemma3_text", "Gemma3ForCausalLM",
        {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "head_dim": 256,
         "num_key_value_heads": 1, "sliding_window": 512, "num_hidden_layers": 6, "vocab_size": 262_144},
    ),
    Model(
        "Phi-3 mini", "phi3", "Phi3ForCausalLM",
        {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
         "max_position_embeddings": 4096, "sliding_window": 2047, "num_hidden_layers": 1, "vocab_size": 32_064,
         "pad_token_id": 0},
    ),
    Model(
        "Mixtral 8x7B", "mixtral", "MixtralForCausalLM",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
         "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 1, "vocab_size": 32_000},
    ),
    Model(
        "DeepSeek-V2-Lite", "deepseek_v2", "DeepseekV2ForCausalLM",
        {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_attention_heads": 16,
         "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
         "num_hidden_layers": 2, "vocab_size": 102_400},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kernel of a model for an architecture. `key`: a digest of its settings and its source."""

    model: str
    dtype: str
    capability: str
    kernel: Kernel
    key: str

    @property
    def kind(self) -> str:
        return KIND_OF[self.kernel.stem]


Stacks = dict[str, dict[str, int]]  # by version of Triton and key: bytes of stack of a thread


def cases() -> Iterator[Case]:
    """Every kernel of every model, dtype and architecture, and the attention of docs/kernels.md.

    Models in float8 have bfloat16 only.
    """
    models = [replace(model, settings={**model.settings, **COMPLETE[model.name]}) for model in MODELS]
    for capability in NVIDIA:
        for _, dtype, kernel in configurations(capability):
            yield Case("attention of docs/kernels.md", dtype, capability, kernel, _key(kernel, capability))
        for model in (*models, *MORE):
            for dtype in ("bfloat16",) if model.activations else ("bfloat16", "float32"):
                own = replace(model, dtype=dtype)
                each = [every_kernel(own, capability, CONTEXT, TOKENS["prefill"], count) for count in SEQUENCES]
                for kernel in dict.fromkeys(kernel for kernels in each for kernel in kernels):
                    yield Case(model.name, dtype, capability, kernel, _key(kernel, capability))


@cache
def _key(kernel: Kernel, capability: str) -> str:
    """Without the versions of Triton and of its assemblers."""
    inputs = inputs_of(kernel, capability)
    if inputs is None:
        raise SystemExit("source files of kernels changed: start again")
    return key_of({name: value for name, value in inputs.items() if name not in ("tools", "ptxas")})[:12]


def measure(found: Sequence[Case], stacks: Stacks, seconds: float) -> Iterator[None]:
    """Adds the stack of each kernel that has none yet, with the installed Triton; yields after every few kernels.

    Products and attention come first, and bfloat16 before float32.
    """
    own, end = stacks.setdefault(version("triton"), {}), time.monotonic() + seconds
    late = ("elements and norms", "sampling")
    ordered = sorted(
        found, key=lambda case: (case.kind in late, case.dtype != "bfloat16", NVIDIA.index(case.capability))
    )
    left = list({case.key: case for case in ordered if case.key not in own}.values())
    while left and time.monotonic() < end:
        some = [case for case in left[:AT_ONCE] if case.capability == left[0].capability]
        left = left[len(some) :]
        compiled = compile_kernels([case.kernel for case in some], some[0].capability, None)
        for case in some:
            own[case.key] = resources(compiled[case.kernel]).stack
            if own[case.key]:
                print(case, own[case.key], flush=True)
        print(f"{len(left)} kernels left", flush=True)
        yield


def page(found: Sequence[Case], stacks: Stacks, date: str) -> str:
    """The page: how many kernels were compiled, and those that have a stack."""
    versions = sorted(stacks, reverse=True)
    keys = {case.key for case in found}
    counts = ", ".join(f"{len(keys & stacks[each].keys()):,} with {each}" for each in versions)
    lines = [
        f"# Stack of kernels with Triton {' and '.join(versions)}", "",
        f"{date}. {len(keys):,} different kernels, of which were compiled: {counts}. Each version has its own ptxas;",
        "bytes of stack, which contains spilled registers, by `cuobjdump -res-usage`. No GPU was used.", "",
        f"The kernels of models with a context of {CONTEXT}: decode of {' and of '.join(map(str, SEQUENCES))}",
        f"sequences, a prefill of {TOKENS['prefill']} tokens, sampling; and the attention of docs/kernels.md. A cell",
        "is the number of different kernels, if each version compiled all and none has a stack; otherwise how many",
        "each version compiled, and the sum of their stacks.", "",
        f"| kernels | dtype | {' | '.join(NVIDIA)} |",
        f"|---|---|{'--:|' * len(NVIDIA)}",
        *_rows(found, [stacks[each] for each in versions]), "",
        *(_spilling(found, stacks) or ["No kernel that was compiled has a stack."]), "",
        "`python -m benchmarks.spills --out FILE`, once with each version of Triton.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rows(found: Iterable[Case], stacks: Sequence[Mapping[str, int]]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    for case in found:
        cells = groups.setdefault((case.model, case.kind, case.dtype), {})
        cells.setdefault(case.capability, set()).add(case.key)
    for (model, kind, dtype), cells in groups.items():
        texts = (_cell(cells.get(capability, set()), stacks) for capability in NVIDIA)
        yield f"| {model}: {kind} | {dtype} | {' | '.join(texts)} |"


def _cell(keys: set[str], stacks: Sequence[Mapping[str, int]]) -> str:
    done = [[each[key] for key in keys if key in each] for each in stacks]
    if all(len(each) == len(keys) and not any(each) for each in done):
        return str(len(keys))
    return ", ".join(f"{len(each)} of {len(keys)}" + (f" ({sum(each)} B)" if any(each) else "") for each in done)


def _spilling(found: Iterable[Case], stacks: Stacks) -> list[str]:
    lines = {
        f"| `{case.kernel.stem}`, {case.dtype} | {case.model} | {case.capability} | {each} | {own[case.key]} |"
        for case in found
        for each, own in stacks.items()
        if own.get(case.key)
    }
    return (
        ["| kernel | model | on | Triton | bytes of stack |", "|---|---|---|---|--:|", *sorted(lines)] if lines else []
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the page, named YYYY-MM-DD-….md")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--kernel", action="append", help="only this kernel, for example `linear_tile`; repeatable")
    options = parser.parse_args()
    out, saved = options.out, options.out.with_suffix(".json")
    stacks: Stacks = json.loads(saved.read_text("utf-8")) if saved.exists() else {}
    found = [case for case in cases() if options.kernel is None or case.kernel.stem in options.kernel]
    keys = {case.key for case in found}
    stacks = {each: {key: stack for key, stack in own.items() if key in keys} for each, own in stacks.items()}
    for _ in measure(found, stacks, 60 * options.minutes):
        saved.write_text(json.dumps(stacks, sort_keys=True, separators=(",", ":")) + "\n", "utf-8")
        out.write_text(page(found, stacks, out.name[:10]), "utf-8")
    out.write_text(page(found, stacks, out.name[:10]), "utf-8")


if __name__ == "__main__":
    main()
