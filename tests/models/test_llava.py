"""The language models of LLaVA and Mistral 3: parity with transformers' models of images given text, under each set of
names they go by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    Mistral3Config,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from bringup.compile.check.ties import tie_warnings
from bringup.compile.job import open_job
from bringup.compile.parity.reference import Reference
from bringup.compile.pipeline import check
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.llava import IMAGES
from bringup.graphs.llava import LlavaConfig as OurConfig
from tests.models import family, parity, test_ministral3, test_mistral4

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
EYES = CLIPVisionConfig(
    hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, image_size=4, patch_size=2
)


def seeing(text: PreTrainedConfig, **more: Any) -> LlavaConfig:
    return LlavaConfig(vision_config=EYES, text_config=text, image_token_index=130, **more)


def seeing3(text: PreTrainedConfig, **more: Any) -> Mistral3Config:
    eyes = PixtralVisionConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=4, patch_size=2
    )
    return Mistral3Config(vision_config=eyes, text_config=text, image_token_index=130, **more)


CASES: dict[str, PreTrainedConfig] = {
    "llama": seeing(
        LlamaConfig(**SIZES, hidden_size=42, intermediate_size=60, num_attention_heads=7, num_key_value_heads=1)
    ),
    "mistral-window": seeing(
        MistralConfig(
            **SIZES, hidden_size=30, intermediate_size=34, num_attention_heads=3, num_key_value_heads=3, head_dim=12,
            sliding_window=9,
        )
    ),
    "qwen2-tied": seeing(
        Qwen2Config(
            **SIZES, hidden_size=48, intermediate_size=50, num_attention_heads=6, num_key_value_heads=3,
            tie_word_embeddings=True,
        )
    ),
    "mistral3-ministral3": seeing3(test_ministral3.CASES["linear-gelu"], tie_word_embeddings=False),
    "mistral3-mistral4-tied": seeing3(test_mistral4.CASES["straight-queries-halves-biases"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in folders:
            folders[name] = parity.save_checkpoint(CASES[name], tmp_path_factory.mktemp(name))
        return folders[name]

    return write


def as_modules_have_them(name: str) -> str:
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    return "model." + name.replace("language_model.model.", "language_model.")


def as_the_original_code_has_them(name: str) -> str:
    """github.com/haotian-liu/LLaVA: Llama's own names, and all that sees below `model.`."""
    name = name.removeprefix("language_model.").replace("multi_modal_projector.linear_", "model.mm_projector.")
    return name.replace("vision_tower.", "model.vision_tower.vision_tower.vision_model.")


# What liuhaotian/llava-v1.5-7b says of images.
ORIGINAL: dict[str, Any] = {
    "architectures": ["LlavaLlamaForCausalLM"],
    "model_type": "llava",
    "freeze_mm_mlp_adapter": False,
    "image_aspect_ratio": "pad",
    "mm_hidden_size": 1024,
    "mm_projector_type": "mlp2x_gelu",
    "mm_resampler_type": None,
    "mm_use_im_patch_token": False,
    "mm_use_im_start_end": False,
    "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2,
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "tune_mm_mlp_adapter": False,
    "unfreeze_mm_vision_tower": False,
    "use_mm_proj": True,
}


@pytest.mark.parametrize("rename", [as_modules_have_them, as_the_original_code_has_them])
def test_other_names_are_the_same_model(rename: Callable[[str], str], written, tmp_path: Path) -> None:
    raw = json.loads((written("llama") / "config.json").read_text("utf-8"))
    if rename is as_the_original_code_has_them:
        raw = raw["text_config"] | ORIGINAL
    job = open_job(checkpoint=str(family.renamed(written("llama"), tmp_path / "renamed", rename, raw)))
    assert check(job).ok
    tokens, theirs = family.reference(written("llama"))
    ours = family.eager_logits(job, tokens, family.PROMPT)
    assert parity.distance(ours, theirs).worst <= family.WORST["torch"]


@pytest.mark.parametrize(
    ("rename", "place"),
    [
        (str, "language_model.model."),
        (as_modules_have_them, "model.language_model."),
        (as_the_original_code_has_them, "model."),
    ],
)
def test_what_is_missing_is_reported_by_its_name_in_the_file(
    rename: Callable[[str], str], place: str, written, tmp_path: Path
) -> None:
    lost = "language_model.model.layers.1.mlp.up_proj.weight"
    raw = json.loads((written("llama") / "config.json").read_text("utf-8"))
    folder = family.renamed(
        written("llama"), tmp_path / "renamed", lambda name: "lost" if name == lost else rename(name), raw
    )
    (finding, unread) = check(open_job(checkpoint=str(folder))).findings
    assert (finding.code, finding.sources) == ("BU101", (f"{place}layers.1.mlp.up_proj.weight",))
    assert (unread.code, unread.sources) == ("BU105", ("lost",))


def test_what_sees_is_dropped_and_counted(written) -> None:
    job = open_job(checkpoint=str(written("llama")))
    report = check(job)
    assert report.ok
    seen = [name for name in job.checkpoint.headers if name.startswith(("vision_tower.", "multi_modal_projector."))]
    assert len(seen) > 20
    assert report.counts["dropped"] == len(seen)
    assert report.counts["consumed"] == len(job.checkpoint.headers) - len(seen)


@pytest.mark.slow
def test_verify_compares_with_the_whole_model(written) -> None:
    found = verify("llava", str(written("llama")))
    assert found.ok
    assert found.reference.startswith("transformers")


def test_no_key_is_overlooked() -> None:
    raw = {key: value for key, value in CASES["llama"].to_dict().items() if value is not None}
    for key in raw.keys() - NEUTRAL - IMAGES:
        with pytest.raises(BringupError, match=r"BU12[0-5]"):
            OurConfig.from_hf(raw | {key: "nonsense"})
    text = {key: value for key, value in raw["text_config"].items() if value is not None}
    for key in text.keys() - (NEUTRAL - {"model_type"}):
        with pytest.raises(BringupError, match=r"BU12[0-5]"):
            OurConfig.from_hf(raw | {"text_config": text | {key: "nonsense"}})


# --- config.json


def full(config: PreTrainedConfig) -> OurConfig:
    return OurConfig.from_hf(json.loads(config.to_json_string(use_diff=False)))


@pytest.mark.parametrize(
    "words", [{}, {"text_config": {}}, *({"text_config": {"model_type": t}} for t in ("llama", "mistral", "qwen2"))]
)
def test_absent_keys_are_the_defaults_of_the_text_family(words: dict[str, Any]) -> None:
    assert OurConfig.from_hf(words) == full(LlavaConfig.from_dict(words))


TEXTS = ("llama", "ministral3", "mistral", "mistral4", "qwen2")


@pytest.mark.parametrize(
    "words",
    [{}, {"text_config": None}, {"text_config": {}}, *({"text_config": {"model_type": text}} for text in TEXTS)],
)
def test_absent_keys_of_mistral3(words: dict[str, Any]) -> None:
    """Without a `text_config`, those of Mistral Small 3.1."""
    ours = OurConfig.from_hf({"model_type": "mistral3"} | words)
    assert ours == full(Mistral3Config.from_dict(words))
    assert ours.block.tied_head


@pytest.mark.parametrize(("outer", "tied"), [({}, True), ({"tie_word_embeddings": False}, False)])
@pytest.mark.parametrize("inner", [False, True])
def test_the_outer_key_alone_ties_the_head_of_mistral3(outer: dict[str, bool], tied: bool, inner: bool) -> None:
    raw = {"model_type": "mistral3", "text_config": {"tie_word_embeddings": inner}} | outer
    assert OurConfig.from_hf(raw).block.tied_head is tied


def test_a_head_of_its_own_in_mistral3(tmp_path: Path) -> None:
    """As Mistral Small 3.1 is published: the config ties the head, and the file has another one, which is used. The
    reference of `verify` is transformers' model of images and text."""
    folder = parity.save_checkpoint(CASES["mistral3-ministral3"], tmp_path)
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    del raw["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(raw), "utf-8")
    job = open_job(checkpoint=str(folder))
    assert check(job).findings == []
    assert [(finding.code, finding.severity) for finding in tie_warnings(job)] == [("BU114", Severity.WARNING)]
    tokens = parity.random_tokens(20, 131)
    theirs = Reference(job.checkpoint, job.config, "float32").logits(tokens)
    assert parity.distance(family.eager_logits(job, tokens, 20), theirs).worst <= family.WORST["torch"]


def test_llava_1_5_as_published() -> None:
    """llava-hf/llava-1.5-7b-hf says little of its text model."""
    text = {
        "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064,
    }  # fmt: skip
    raw = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "pad_token_id": 32001,
        "ignore_index": -100, "image_token_index": 32000, "projector_hidden_act": "gelu", "vocab_size": 32064,
        "text_config": text, "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024},
    }  # fmt: skip
    ours = OurConfig.from_hf(raw).block
    assert (ours.hidden, ours.ffn, ours.num_heads, ours.num_kv_heads, len(ours.windows)) == (4096, 11008, 32, 32, 32)
    assert (ours.vocab_size, ours.max_positions, ours.eps) == (32064, 4096, 1e-5)


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU125", "", {"text_config": {"model_type": "gemma"}}),
        ("BU125", "", {"model_type": "mistral3", "text_config": {"model_type": "gemma"}}),
        ("BU121", "text_config", {"text_config": "llama"}),
        ("BU121", "tie_word_embeddings", {"model_type": "mistral3", "tie_word_embeddings": None}),
        ("BU121", "text_config", {"model_type": "mistral3", "text_config": "mistral"}),
        ("BU120", "hidden_size", {"model_type": "mistral3", "hidden_size": 64}),
        ("BU122", "hidden_act", {"text_config": {"hidden_act": "quick_gelu"}}),
        ("BU120", "attn_logit_softcapping", {"text_config": {"attn_logit_softcapping": 50.0}}),
        ("BU120", "attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]


def test_a_key_of_the_text_model_can_be_allowed() -> None:
    raw: dict[str, Any] = {"text_config": {"my_note": 1}, "other": 2}
    assert OurConfig.from_hf(raw, {"my_note": "bookkeeping", "other": "too"}) == OurConfig.from_hf({})
