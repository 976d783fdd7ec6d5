"""gpt-oss: sinks, biases of all layers, experts in one tensor with interleaved columns, MXFP4."""

from __future__ import annotations

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

EXPERTS = "mlp.experts."
BOTH = ", ".join(f"model.layers.{{0..2}}.mlp.experts.{x}_proj" for x in ("gate", "up"))


def _each(trial: Trial, inner: str, new) -> None:
    for layer in range(trial.draft.depth):
        trial.change(trial.draft.name(inner, layer), new)


def mxfp4(trial: Trial) -> None:
    """The experts' matrices as published: e2m1 values, two a byte, and a byte of scale for each 32."""
    random = np.random.default_rng(0)
    for layer in range(trial.draft.depth):
        for name in ("gate_up_proj", "down_proj"):
            e, columns, rows = trial.tensors.pop(at := trial.draft.name(EXPERTS + name, layer)).shape
            blocks = random.integers(0, 256, (e, rows, columns // 32, 16), dtype=np.uint8)
            trial.tensors[f"{at}_blocks"] = blocks
            trial.tensors[f"{at}_scales"] = np.full(blocks.shape[:-1], 120, np.uint8)
    trial.config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def sinks(trial: Trial) -> None:
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if "sinks" not in name}


def router_bias(trial: Trial) -> None:
    del trial.tensors["model.layers.1.mlp.router.bias"]


def never_written(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        left = array.copy()
        left[2] = np.nan
        return left

    trial.change(f"model.layers.1.{EXPERTS}down_proj", new)


def halves(trial: Trial) -> None:
    """Gate and up one after the other, as other families join them."""
    for old in ('"e m (f two)", two=2)', '"e (f two) m -> two e f m", two=2)'):
        trial.edit_adapter(old, old.replace("(f two)", "(two f)"))


def turns_in_tensors(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        e, m, both = array.shape
        return array.reshape(e, m, 2, both // 2).swapaxes(2, 3).reshape(e, m, both)

    _each(trial, f"{EXPERTS}gate_up_proj", new)


def transposed(trial: Trial) -> None:
    """Output first, as a Linear's weight."""
    _each(trial, f"{EXPERTS}gate_up_proj", lambda array: array.swapaxes(1, 2))


def sinks_of_neighbours(trial: Trial) -> None:
    trial.change("model.layers.0.self_attn.sinks", lambda array: np.roll(array, 1))


def lost_scales(trial: Trial) -> None:
    mxfp4(trial)
    del trial.tensors[f"model.layers.1.{EXPERTS}down_proj_scales"]


def scales_as_floats(trial: Trial) -> None:
    """The powers of two themselves, where their exponents are to be."""
    mxfp4(trial)
    _each(trial, f"{EXPERTS}gate_up_proj_scales", lambda array: np.exp2(array.astype(np.float32) - 127))


def tied(trial: Trial) -> None:
    trial.config["tie_word_embeddings"] = True


def wide_layer(trial: Trial) -> None:
    trial.draft.tensors = {name: array.astype(np.float16) for name, array in trial.tensors.items()}
    trial.change(f"model.layers.1.{EXPERTS}gate_up_proj", lambda array: array.astype(np.float32))
    trial.config["dtype"] = "float16"


def rounded(trial: Trial) -> None:
    there = "from bringup.adapters.planning.adapter import"
    trial.edit_adapter(there, f"from bringup.adapters.algebra.values import cast\n{there}")
    trial.edit_adapter('S(experts + "down_proj", "e f m")', 'cast(S(experts + "down_proj", "e f m"), "bfloat16")')


def rounded_in_tensors(trial: Trial) -> None:
    import ml_dtypes

    _each(trial, f"{EXPERTS}down_proj", lambda array: array.astype(ml_dtypes.bfloat16).astype(np.float32))


def no_rule(trial: Trial) -> None:
    mxfp4(trial)
    trial.edit_adapter('        oss[f"model.{experts}{x}_proj"] = matrix\n', "")


def without_experts(trial: Trial) -> None:
    mxfp4(trial)
    parts = ("_blocks", "_scales")
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if not name.endswith(parts)}


def window(trial: Trial) -> None:
    """All layers see everything."""
    trial.config["layer_types"] = ["full_attention"] * 3


def _oss(key: str, title: str, pain: int, seen: str, spoil, code: str, names: str, **more) -> Mutation:
    return Mutation(
        key=f"oss-{key}", title=title, pain=pain, seen=seen, base="gpt_oss", spoil=spoil, code=code, names=names, **more
    )


GPT_OSS = (
    _oss(
        "sinks",
        "The attention sinks are missing",
        1,
        "vllm#57108",
        sinks,
        "BU101",
        "model.layers.{0..2}.self_attn.sinks",
    ),
    _oss(
        "router-bias",
        "A router's bias is missing",
        1,
        "vllm#34930",
        router_bias,
        "BU101",
        "model.layers.1.mlp.router.bias",
    ),
    _oss(
        "never-written",
        "One expert is NaN",
        1,
        "vllm#45212",
        never_written,
        "BU133",
        "model.layers.1.mlp.experts.down_proj",
        phase="compile",
    ),
    _oss(
        "halves",
        "A rule reads gate and up as halves, and they are interleaved",
        2,
        "vllm#44113",
        halves,
        "BU701",
        "model.layers.0.mlp.experts",
        phase="verify",
        convert=turns_in_tensors,
    ),
    _oss("transposed", "The experts are stored output first", 2, "unsloth-zoo#849", transposed, "BU102", BOTH),
    _oss(
        "sinks-in-file",
        "The sinks of one layer are those of the neighbouring heads",
        2,
        "tt-metal#38321",
        sinks_of_neighbours,
        "BU701",
        "model.layers.0.self_attn",
        phase="against",
    ),
    _oss(
        "lost-scales",
        "The scales of an MXFP4 matrix are missing",
        3,
        "vllm#57108",
        lost_scales,
        "BU101",
        "model.layers.1.mlp.experts.down_proj",
    ),
    _oss("scales-as-floats", "MXFP4 scales are stored as floats", 3, "vllm#51946", scales_as_floats, "BU108", BOTH),
    _oss(
        "tied",
        "The config ties gpt-oss's head, and the file has another one",
        5,
        "transformers#46456",
        tied,
        "BU114",
        "lm_head.weight",
        phase="compile",
        warns=True,
    ),
    _oss(
        "wide-layer",
        "The experts of one layer are float32 among float16 ones",
        8,
        "llm-compressor#3037",
        wide_layer,
        "BU135",
        "model.layers.1.mlp.experts.gate_proj",
        warns=True,
    ),
    _oss(
        "rounded",
        "A rule rounds the experts, and the model is saved back",
        10,
        "transformers#48075",
        rounded,
        "BU117",
        "model.layers.0.mlp.experts.down_proj",
        phase="export",
        convert=rounded_in_tensors,
    ),
    _oss(
        "window",
        "The config has no sliding window",
        12,
        "transformers#38489",
        window,
        "BU701",
        "model.layers.0.self_attn",
        phase="against",
    ),
    _oss(
        "no-rule",
        "The table omits experts in MXFP4",
        14,
        "transformers#41580",
        no_rule,
        "BU103",
        f"{BOTH}, model.layers.{{0..2}}.mlp.experts.down_proj",
        convert=without_experts,
    ),
)
