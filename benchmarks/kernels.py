"""Writes docs/kernels.md: registers, memory and occupancy of the kernels selected for the shapes of known models.

One table of each architecture has the kernels of attention and of recurrent layers; for NVIDIA, another has the
products of a layer.

Kernels are compiled for every architecture, which needs no GPU: `python -m benchmarks.kernels`. `--only sm_90` selects
one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.layer_kernels import MODELS, kernels_of
from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.resources import Resources, resources
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Argument, Buffer, Group, Node, OpGraph, whole
from bringup.graphs.core.step import FIELDS, CacheSizes, step_shapes

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
BEGIN, END = "<!-- begin of the generated tables -->", "<!-- end of the generated tables -->"
DTYPES = ("float32", "bfloat16")  # float16 has the kernels of bfloat16
CONTEXT = 2048
TOKENS = {"decode": 1, "prefill": 512}


@dataclass(frozen=True)
class Shape:
    """Attention of a model: query heads, key heads, channels; what else changes its kernel."""

    model: str
    heads: int
    groups: int
    channels: int
    window: int | None = None
    has_sinks: bool = False
    softcap: float | None = None


SHAPES = (
    Shape("GPT-2", 12, 12, 64),
    Shape("Llama 3", 32, 8, 128),
    Shape("Phi-3", 32, 32, 96),
    Shape("gpt-oss", 64, 8, 64, window=128, has_sinks=True),
    Shape("Gemma 2", 8, 4, 256, softcap=50.0),
)
CONVOLUTIONS = {"Qwen3-Next": (16 * 4 * 128, 4), "LFM2-1.2B": (2048, 3)}  # channels and taps

Tensors = dict[str, tuple[tuple[int, ...], str]]


def attention_graph(shape: Shape, dtype: str, stage: str) -> OpGraph:
    """A function of one attention over a paged cache."""
    queries = (TOKENS[stage], shape.heads, shape.channels)
    cache = (CacheSizes(context=CONTEXT).slots, shape.groups, shape.channels)
    tensors: Tensors = {
        **{"q_NHK": (queries, dtype), "k_SGK": (cache, dtype), "v_SGV": (cache, dtype), "out": (queries, dtype)},
        **({"sinks_H": ((shape.heads,), dtype)} if shape.has_sinks else {}),
    }
    settings: dict[str, Argument] = {"scale": shape.channels**-0.5, "window": shape.window, "softcap": shape.softcap}
    return _graph("attention", stage, tensors, settings)


def latent_graph(dtype: str, stage: str) -> OpGraph:
    """DeepSeek-V2-Lite's: 16 heads, 128 + 64 channels of a query, a latent of 512, 128 channels of a value."""
    tokens, slots = TOKENS[stage], CacheSizes(context=CONTEXT).slots
    tensors: Tensors = {
        **{
            "q_NHn": ((tokens, 16, 128), dtype),
            "q_NHp": ((tokens, 16, 64), dtype),
            "rows_S1r": ((slots, 1, 576), dtype),
        },
        **{"to_keys_xc": ((16 * 128, 512), dtype), "to_values_yc": ((16 * 128, 512), dtype)},
        "out": ((tokens, 16, 128), dtype),
    }
    return _graph("latent_attention", stage, tensors, {"scale": 192**-0.5})


def delta_graph(dtype: str, stage: str) -> OpGraph:
    """Qwen3-Next's: 16 key heads, 32 value heads, 128 channels of each."""
    tokens = TOKENS[stage]
    tensors: Tensors = {
        **{name: ((tokens, 16, 128), dtype) for name in ("q_NGK", "k_NGK")},
        **{"v_NGRV": ((tokens, 16, 2, 128), dtype), "decay_NH": ((tokens, 32), "float32")},
        **{"beta_NH": ((tokens, 32), dtype), "state_SHKV": ((2, 32, 128, 128), "float32")},
        "out": ((tokens, 32, 128), dtype),
    }
    return _graph("gated_delta_rule", stage, tensors, {})


def state_space_graph(dtype: str, stage: str) -> OpGraph:
    """Bamba-9B's: one key head, 128 value heads, 128 channels of a key and 64 of a value. Values are float32."""
    tokens = TOKENS[stage]
    tensors: Tensors = {
        **{name: ((tokens, 1, 128), dtype) for name in ("q_NGK", "k_NGK")},
        **{"v_NGRV": ((tokens, 1, 128, 64), "float32"), "decay_NH": ((tokens, 128), "float32")},
        **{"state_SHKV": ((2, 128, 128, 64), "float32"), "out": ((tokens, 128, 64), "float32")},
    }
    return _graph("state_space", stage, tensors, {})


def convolution_graph(model: str, dtype: str, stage: str) -> OpGraph:
    """A convolution of a model's channels and taps, without a bias."""
    (channels, taps), tokens = CONVOLUTIONS[model], TOKENS[stage]
    tensors: Tensors = {
        **{"x_NC": ((tokens, channels), dtype), "weight_CK": ((channels, taps), dtype)},
        **{"state_RTC": ((2, taps - 1, channels), dtype), "out": ((tokens, channels), dtype)},
    }
    return _graph("causal_conv", stage, tensors, {"bias_C": None})


def _graph(op: str, stage: str, tensors: Tensors, settings: dict[str, Argument]) -> OpGraph:
    step = step_shapes(TOKENS[stage], 1, CacheSizes(context=CONTEXT).blocks_each)
    every = tensors | {f"step_{name}": (step[name], "int64") for name in FIELDS}
    buffers = {
        name: Buffer(name=name, shape=shape, dtype=dtype, kind="temporary") for name, (shape, dtype) in every.items()
    }
    arguments: dict[str, Argument] = {name: whole(buffers[name]) for name in every if name != "out"}
    arguments |= {"step_decode": stage == "decode", "step_contiguous": False, "step_proposals": False, **settings}
    names, values = tuple(arguments), tuple(arguments.values())
    node = Node(op=f"bringup.{op}.default", names=names, arguments=values, outputs=("out",))
    return OpGraph(op, buffers, (Group((node,)),), (whole(buffers["out"]),))


def configurations(capability: str) -> Iterator[tuple[str, str, Kernel]]:
    """What is computed, its dtype, the kernel that is chosen for it."""
    for dtype in DTYPES:
        for stage in TOKENS:
            graphs = {f"{shape.model} ({shape.channels})": attention_graph(shape, dtype, stage) for shape in SHAPES}
            graphs["DeepSeek-V2-Lite (MLA)"] = latent_graph(dtype, stage)
            graphs |= {f"{model} (convolution)": convolution_graph(model, dtype, stage) for model in CONVOLUTIONS}
            graphs["Qwen3-Next (gated delta rule)"] = delta_graph(dtype, stage)
            graphs["Bamba-9B (state space)"] = state_space_graph(dtype, stage)
            for model, graph in graphs.items():
                for call in calls_of(graph, graph.groups[0], capability) or ():
                    yield f"{stage}, {model}", dtype, call.kernel


def measured(capability: str) -> list[tuple[str, str, Kernel, Resources]]:
    """Every configuration of an architecture with its resources."""
    rows = list(configurations(capability))
    compiled = compile_kernels((kernel for _, _, kernel in rows), capability, default_store())
    return [(what, dtype, kernel, resources(compiled[kernel])) for what, dtype, kernel in rows]


def attention_table(capability: str) -> list[str]:
    """A row for each kernel."""
    spilled = "bytes of stack" if is_nvidia(capability) else "spilled registers"
    lines = [f"| kernel | dtype | registers | {spilled} | shared memory | occupancy |", "|---|---|---|---|---|---|"]
    for what, dtype, kernel, used in measured(capability):
        numbers = f"{used.registers} | {used.stack} | {used.shared:,} | {used.warps} of {used.max_warps}"
        lines.append(f"| `{kernel.stem}`: {what} | {dtype} | {numbers} |")
    return lines


def layer_table(capability: str) -> list[str]:
    """A row for each model and kind of kernel, with the most that one of them takes, and their stack together."""
    lines = [
        "| kernels | dtype | number | most registers | bytes of stack | most shared memory | least occupancy |",
        "|---|---|---|---|---|---|---|",
    ]
    chosen = [(model, list(kernels_of(model, capability, CONTEXT, TOKENS["prefill"]))) for model in MODELS]
    compiled = compile_kernels((kernel for _, each in chosen for kernel in each), capability, default_store())
    for model, kernels in chosen:
        for stem in sorted({kernel.stem for kernel in kernels}):
            each = [resources(compiled[kernel]) for kernel in kernels if kernel.stem == stem]
            least = min(each, key=lambda used: used.occupancy)
            most = f"{max(used.registers for used in each)} | {sum(used.stack for used in each)}"
            shared = max(used.shared for used in each)
            numbers = f"{len(each)} | {most} | {shared:,} | {least.warps} of {least.max_warps}"
            lines.append(f"| `{stem}`: {model.name} | {model.dtype} | {numbers} |")
    return lines


def table(capability: str) -> str:
    """The tables of one architecture, as Markdown."""
    lines = [f"### {capability}", "", *attention_table(capability)]
    if is_nvidia(capability):
        lines += ["", *layer_table(capability)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(ARCHITECTURES), help="print the tables of one architecture")
    only = parser.parse_args().only
    if only:
        print(table(only))
        return
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    tables = "\n\n".join(table(name) for name in ARCHITECTURES)
    versions = f"Triton {version('triton')}"
    PAGE.write_text(f"{head}{BEGIN}\n\n{versions}.\n\n{tables}\n\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
