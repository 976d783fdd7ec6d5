"""EAGLE-3 heads: parity with the published formulas, the layouts of their files, and faulty heads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.eagle3 import offsets_of, rows_in
from bringup.adapters.sources.open_checkpoint import Access
from bringup.compile.check.values import value_findings
from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError, Report
from bringup.graphs.drafts import draft_by_tensors
from bringup.graphs.eagle3 import Eagle3Config
from tests.models import family, heads, parity

SIZES: dict[str, Any] = {
    "vocab_size": 131, "max_position_embeddings": 1024, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
    "architectures": ["LlamaForCausalLMEagle3"],
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "all-tokens": LlamaConfig(
        **SIZES, hidden_size=40, intermediate_size=52, num_attention_heads=5, num_key_value_heads=1,
    ),
    "few-tokens-llama3": LlamaConfig(
        **SIZES, hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2,
        draft_vocab_size=37, rope_parameters=LLAMA3, norm_before_residual=True, norm_before_fc=True,
    ),
    "other-width-biases": LlamaConfig(
        **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=3, num_key_value_heads=3,
        draft_vocab_size=90, target_hidden_size=44, attention_bias=True, mlp_bias=True, fc_norm=True,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 4, 6], "use_aux_hidden_state": True},
    ),
    "qwen3-output-norm": Qwen3Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        norm_output=True,
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> heads.Head:
    """A head of one of CASES, with the names of either form."""
    layer = "midlayer." if name in ("all-tokens", "other-width-biases") else "layers.0."
    checkpoint = heads.save(CASES[name], folder / "head", dtype, layer=layer)
    return heads.Head(checkpoint, checkpoint, "eagle3")


RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61, "draft_vocab_size": 20,
    "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 1, "num_attention_heads": 3,
    "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 128,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def report(folder: Path, *also: str, **changed: Any) -> Report:
    """The report of `check` on a head."""
    return check(open_job("eagle3", str(folder), access=Access(also=also), **changed))


def logits(folder: Path, model: str | None = "eagle3", *also: str) -> np.ndarray:
    """Of one prompt, by torch without compiling."""
    job = open_job(model, str(folder), access=Access(also=also))
    check(job).raise_if_errors()
    tokens, inputs = parity.random_tokens(12, RAW["vocab_size"]), rows()
    return family.eager_logits(job, tokens, 12, **inputs)


def rows() -> dict[str, np.ndarray]:
    hidden = np.random.default_rng(5).standard_normal((12, 3 * RAW["hidden_size"]), np.float32)
    return {"hidden": hidden, "own": np.zeros((12, RAW["hidden_size"]), np.float32)}


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return heads.save(RAW, tmp_path / "head")


def test_forms_of_files(head: Path, tmp_path: Path) -> None:
    """A head of the EAGLE repository, as torch files too, and the same as SGLang and speculators have it."""
    tensors, _ = heads.read(head)
    wanted = heads.outputs(head, parity.random_tokens(12, RAW["vocab_size"]), *rows().values())[0]
    assert np.isfinite(wanted).sum(1).tolist() == [RAW["draft_vocab_size"]] * len(wanted)
    saved = tmp_path / "torch"
    saved.mkdir()
    torch.save(tensors, saved / "pytorch_model.bin")
    (saved / "config.json").write_text(json.dumps(RAW), "utf-8")
    sglang = heads.write(tmp_path / "sglang", tensors, RAW | {"architectures": ["LlamaForCausalLMEagle3"]})
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    words = heads.speculators(RAW | {"norm_before_residual": False})
    ours = heads.write(tmp_path / "speculators", renamed, words)
    vllm = {f"model.{name}" if name not in ("d2t", "t2d", "lm_head.weight") else name: t for name, t in renamed.items()}
    of_llama = heads.write(tmp_path / "llama", vllm, RAW)
    of_vllm = heads.write(tmp_path / "vllm", vllm, RAW | {"architectures": ["Eagle3LlamaForCausalLM"]})
    for folder in (head, saved, sglang, ours, of_llama, of_vllm):
        family.assert_near(logits(folder, None), wanted, "torch")
    family.assert_near(logits(head, "eagle3"), wanted, "torch")


def test_a_llama_is_no_head(tmp_path: Path) -> None:
    """Both state `LlamaForCausalLM`; a head has a tensor that a Llama lacks, and an architecture that it drafts for."""
    config = LlamaConfig(**{key: RAW[key] for key in RAW if key != "draft_vocab_size"})
    assert open_job(checkpoint=str(parity.save_checkpoint(config, tmp_path))).family.name == "llama"
    names = {"layers.0.hidden_norm.weight"}
    assert [draft_by_tensors([name], names) for name in ("GPT2LMHeadModel", "MistralForCausalLM")] == [None, None]
    assert getattr(draft_by_tensors(["LlamaForCausalLM"], names), "name", "") == "eagle3"


def test_the_main_models_embedding_and_head(head: Path, tmp_path: Path) -> None:
    tensors, _ = heads.read(head)
    embedding = tensors.pop("embed_tokens.weight")
    heads.write(head, tensors, RAW)
    (finding,) = report(head).errors
    assert (finding.code, finding.help) == ("BU101", "name the main model's checkpoint too: --also SRC:main.")
    main = LlamaConfig(**{key: RAW[key] for key in RAW if key != "draft_vocab_size"} | {"num_hidden_layers": 2})
    theirs = parity.save_checkpoint(main, tmp_path / "main")
    read, _ = heads.read(theirs)
    with_own = heads.write(tmp_path / "own", tensors | {"embed_tokens.weight": read["model.embed_tokens.weight"]}, RAW)
    assert (logits(head, "eagle3", f"{theirs}:main.") == logits(with_own)).all()
    assert (
        logits(heads.write(tmp_path / "other", tensors | {"embed_tokens.weight": embedding}, RAW)) != logits(with_own)
    ).any()
    main.hidden_size = 36
    other = parity.save_checkpoint(main, tmp_path / "wider")
    (finding,) = report(head, f"{other}:main.").errors
    assert (finding.code, finding.parameter) == ("BU102", "model.embed_tokens.weight")
    # a head for all tokens without `lm_head`
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    everything = RAW | {"draft_vocab_size": None}
    heads.write(head, tensors, everything)
    (finding,) = report(head).errors
    assert finding.sources == ("main.embed_tokens.weight", "main.lm_head.weight")
    assert finding.help == "name the main model's checkpoint too: --also SRC:main."
    own = {"embed_tokens.weight": read["model.embed_tokens.weight"], "lm_head.weight": read["lm_head.weight"]}
    whole = heads.write(tmp_path / "whole", tensors | own, everything)
    assert (logits(head, "eagle3", f"{theirs}:main.") == logits(whole)).all()


def test_a_head_tied_to_the_main_models_embedding(head: Path, tmp_path: Path) -> None:
    """All tokens have logits: those of the embedding, whose tensor the main model has alone."""
    tensors, _ = heads.read(head)
    absent = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
    raw = RAW | {"draft_vocab_size": None, "tie_word_embeddings": True}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in absent}
    heads.write(head, tensors, raw)
    help = "name the main model's checkpoint too: --also SRC:main."
    (finding,) = report(head).errors
    assert (finding.code, finding.sources, finding.help) == ("BU101", ("main.embed_tokens.weight",), help)
    main = LlamaConfig(**RAW | {"draft_vocab_size": None, "num_hidden_layers": 2, "tie_word_embeddings": True})
    theirs = parity.save_checkpoint(main, tmp_path / "main")
    read, _ = heads.read(theirs)
    assert "lm_head.weight" not in read
    embedding = read["model.embed_tokens.weight"]
    whole = heads.write(tmp_path / "whole", tensors | {name: embedding.clone() for name in absent[:2]}, raw)
    wanted = heads.outputs(whole, parity.random_tokens(12, RAW["vocab_size"]), *rows().values())[0]
    family.assert_near(logits(head, "eagle3", f"{theirs}:main."), wanted, "torch")
    own = heads.write(tmp_path / "own", tensors | {"embed_tokens.weight": embedding + 1}, raw)
    assert (logits(own, "eagle3", f"{theirs}:main.") == logits(own)).all()
    untied = heads.write(tmp_path / "untied", tensors, raw | {"tie_word_embeddings": False})
    (finding,) = report(untied, f"{theirs}:main.").errors
    assert (finding.code, finding.sources) == ("BU101", ("main.lm_head.weight",))
    assert finding.help == f"{help}; if its head is tied to the embedding, set tie_word_embeddings to true"


def test_faulty_heads(head: Path) -> None:
    tensors, _ = heads.read(head)
    tokens = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    for wrong, message in (
        (tokens, r"`d2t` names tokens \d+ to \d+, and the vocabulary has 61"),
        (-torch.arange(len(tokens)), "names a token twice"),
    ):
        job = open_job("eagle3", str(heads.write(head, tensors | {"d2t": wrong}, RAW)))
        with pytest.raises(BringupError, match=rf"BU115.*{message}"):
            materialise(job.plan, job.checkpoint)
    heads.write(head, tensors | {"d2t": tensors["d2t"][:-1]}, RAW)
    (finding,) = report(head).errors
    assert (finding.code, finding.parameter) == ("BU102", "rows")
    heads.write(head, tensors, RAW | {"target_hidden_size": 20})
    (finding,) = report(head).errors
    assert (finding.code, finding.parameter) == ("BU102", "model.fc.weight")
    heads.write(head, {name: tensor for name, tensor in tensors.items() if name != "d2t"}, RAW)
    (finding,) = report(head).errors
    assert (finding.code, finding.sources) == ("BU101", ("d2t",))


def test_flags_of_other_tokens(head: Path) -> None:
    """`t2d` repeats the tokens of `d2t`."""
    tensors, _ = heads.read(head)
    flags = tensors["t2d"]
    absent, last = (int((flags == there).nonzero()[-1]) for there in (False, True))
    for wrong, message in (
        (flags.index_fill(0, torch.tensor([last]), False), f"only `d2t` has token {last}$"),
        (flags.index_fill(0, torch.tensor([absent]), True), f"only `t2d` has token {absent}$"),
        (~flags, "only `.2.` has token 0, and 60 more differ$"),
        (flags[:-1], r"its shape is \[60\], and the vocabulary has 61 tokens$"),
    ):
        job = open_job("eagle3", str(heads.write(head, tensors | {"t2d": wrong}, RAW)))
        assert check(job).ok
        (finding,) = value_findings(job)
        assert finding.code == "BU115"
        assert re.search(rf"^cannot drop `t2d` as a copy of the tokens of `d2t`: {message}", finding.message)
    heads.write(head, tensors | {"t2d": flags.to(torch.int64)}, RAW)
    assert value_findings(open_job("eagle3", str(head))) == []


def test_offsets_of_tokens() -> None:
    """In any order, and back: `export` writes them as they were."""
    offsets = np.array([7, -1, 4, 0])
    rows = rows_in(10)(offsets)
    assert rows.tolist() == [1, -1, -1, 3, -1, -1, 2, 0, -1, -1]
    assert offsets_of(rows)[0].tolist() == offsets.tolist()


def test_dummy_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW), "utf-8")
    job = open_job("eagle3", "dummy", config=str(tmp_path / "config.json"))
    assert (materialise(job.plan, job.checkpoint)["rows"] >= 0).sum() == RAW["draft_vocab_size"]


KEY = "eagle_aux_hidden_state_layer_ids"


def test_hidden_states() -> None:
    """Numbers of layers before a state; in `eagle_config`, of the layers whose outputs they are, from 0 on."""
    for words, states in (
        ({}, (2, "middle", -4)),
        ({"eagle_config": {KEY: [1, 46, 90], "use_aux_hidden_state": True}}, (2, 47, 91)),
        ({KEY: [2, 47, 91]}, (2, 47, 91)),
        ({KEY: None, "eagle_config": {"use_last_layernorm": True}}, (2, "middle", -4)),
    ):
        assert Eagle3Config.from_hf(RAW | words).states == states
    assert Eagle3Config.from_hf(heads.speculators(RAW | {KEY: [2, 47, 91], "norm_before_residual": True})).states == (
        2,
        47,
        91,
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ({"num_hidden_layers": 2}, "BU122", "`num_hidden_layers` = 2"),
        ({"bias": True}, "BU122", "`bias`"),
        ({"fc_norm": True, "norm_before_fc": True}, "BU121", "exclude each other"),
        ({"draft_vocab_size": 62}, "BU124", "draft_vocab_size"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "BU122", "`eagle_config.use_aux_hidden_state`"),
        ({"eagle_config": {"unknown": 1}}, "BU120", "eagle_config.unknown"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "BU152", "Qwen2ForCausalLM"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_configs_of_other_heads(words: dict[str, Any], code: str, message: str, head: Path) -> None:
    heads.write(head, heads.read(head)[0], RAW | words)
    with pytest.raises(BringupError, match=f"{code}.*{message}"):
        report(head).raise_if_errors()


def test_the_residual_of_speculators_is_stated(head: Path) -> None:
    """Its default is false in speculators and true in vLLM."""
    heads.write(head, heads.read(head)[0], heads.speculators(RAW))
    (finding,) = report(head).errors
    assert (finding.code, finding.parameter) == ("BU121", "norm_before_residual")


@pytest.mark.slow
def test_the_kernels_of_a_gpu(tmp_path: Path) -> None:
    """Logits and the head's own hidden states, on the emulator: those of other tokens are -infinity there too."""
    written, prompt, count = write("few-tokens-llama3", tmp_path), 9, 12
    settings: dict[str, Any] = {"max_seq_len": 64, "buckets": (16,), "all_logits": True}
    session = load(build(written.job(), out=tmp_path / "b", target="cuda:sm_90", **settings), "emulate")
    tokens = parity.random_tokens(count, SIZES["vocab_size"])
    inputs = {name: rows[:count] for name, rows in written.inputs.items()}
    wanted, own = heads.outputs(written.checkpoint, tokens, *inputs.values())
    family.assert_near(parity.run(session, tokens, prompt, **inputs), wanted, "torch")
    assert np.abs(session.hidden["hidden.1"] - own[-1:]).max() <= family.WORST["torch"] * np.abs(own).max()
