# pyright: reportUnknownMemberType=false
"""The kernels that are selected for known models: all of them, or those of products and of sorting tokens by expert.

A model is a config only: no weights are read or created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.sampling import sampling_of
from bringup.compile.job import open_job
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.packed_job import weights_of
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.targets.schedule import schedule_of
from bringup.compile.targets.selection import select
from bringup.graphs.core.options import GraphOptions

STEMS = (
    "linear",
    "linear_tile",
    "linear_panels",
    "hopper.linear_specialised",
    "quant.fp8_linear",
    "rows_of_experts",
    "to_blocks",
)
Setting = int | float | str | bool | None | dict[str, object]
FLOAT8: dict[str, object] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


@dataclass(frozen=True)
class Model:
    """A model with as few layers as have all its kernels; `settings` are of its config, by default with 512 tokens.

    `activations`: see `GraphOptions`.
    """

    name: str
    kind: str
    architecture: str
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    dtype: str = "bfloat16"
    activations: str | None = None


def _llama(name: str, hidden: int, inner: int, channels: int, **more: Setting) -> Model:
    """32 heads, 8 key heads; in float8 where `more` has a quantisation."""
    sizes: dict[str, Setting] = {"hidden_size": hidden, "intermediate_size": inner, "head_dim": channels}
    heads: dict[str, Setting] = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1}
    activations = "fp8" if "quantization_config" in more else None
    return Model(name, "llama", "LlamaForCausalLM", {**sizes, **heads, **more}, activations=activations)


MODELS = (
    _llama("Llama 3.2 1B", 2048, 8192, 64),
    Model(
        "Qwen3 0.6B", "qwen3", "Qwen3ForCausalLM",
        {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "head_dim": 128,
         "num_key_value_heads": 8, "num_hidden_layers": 1},
    ),
    Model(
        "gpt-oss, 8 experts", "gpt_oss", "GptOssForCausalLM",
        {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
         "head_dim": 64, "num_local_experts": 8, "num_hidden_layers": 1},
    ),
    _llama(
        "Llama 3 8B, float8 in blocks", 4096, 14336, 128,
        quantization_config={**FLOAT8, "weight_block_size": [128, 128]},
    ),
    _llama("Llama 3 8B, float8 by matrix", 4096, 14336, 128, quantization_config={**FLOAT8}),
)  # fmt: skip


def kernels_of(model: Model, capability: str, context: int, tokens: int) -> Iterator[Kernel]:
    """The different kernels of decode and of a prefill of so many tokens, of `STEMS`."""
    found = every_kernel(model, capability, context, tokens, draws=False)
    yield from (kernel for kernel in found if kernel.stem in STEMS)


def every_kernel(
    model: Model, capability: str, context: int, tokens: int, sequences: int = 1, *, draws: bool = True
) -> Iterator[Kernel]:
    """The different kernels of a program for one sequence: of decode, a prefill of so many tokens, and of sampling.

    For more sequences: those of the decode of all of them only. Without `draws`, none that only sampling has.
    """
    from transformers import AutoConfig

    selection = select(f"cuda:{capability}")
    with TemporaryDirectory() as folder:
        settings = {"vocab_size": 512, **model.settings, "architectures": [model.architecture]}
        AutoConfig.for_model(model.kind, **settings).save_pretrained(folder)
        options = GraphOptions(activations=model.activations)
        job = open_job(checkpoint="dummy", config=f"{Path(folder)}/config.json", dtype=model.dtype, options=options)
        job, _ = weights_of(job, "auto", selection)
        layout = layout_of(job.graph, context, (tokens,), max_batch_size=sequences)
        program = encoded_program(job.graph, layout, selection.form, default_store())
    schedule = schedule_of(program, selection.options, None, lambda graph: split(graph, capability))
    entries = [each.name for each in program.interface.entries if each.decode and each.num_sequences == sequences]
    if sequences == 1:
        entries = list(schedule.entries)
    used = {launch.graph.name: launch.graph for name in entries for launch in schedule.launches(name)}
    calls = [calls_of(graph, group, capability) for graph in used.values() for group in graph.groups]
    drawn = sampling_of(schedule, program.interface, capability)
    calls += [tuple(drawn[name].every_call()) for name in entries if draws and name in drawn]
    yield from dict.fromkeys(call.kernel for each in calls for call in each or ())
