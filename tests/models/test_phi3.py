"""Phi-3 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Phi3Config, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from bringup.graphs.phi3 import Phi3Config as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {
    "vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
SHORT, LONG = [1.0, 1.05, 1.1, 1.3, 1.4, 1.6], [1.1, 1.4, 2.0, 3.0, 5.0, 16.0]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
CASES: dict[str, PreTrainedConfig] = {
    # of the 16 tokens after the prompt, the first five turn by the short factors
    "longrope-part-turns-tied": Phi3Config(
        **SIZES | {"pad_token_id": parity.random_tokens(1, 131)[0]}, hidden_size=80, intermediate_size=66,
        num_attention_heads=5, num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters=LONGROPE | {"partial_rotary_factor": 0.75}, original_max_position_embeddings=64,
    ),
    "window-head-dim": Phi3Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=42, intermediate_size=50, num_attention_heads=7, head_dim=12,
        sliding_window=9, rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
    ),
    "longrope-past-it-at-once": Phi3Config(
        **SIZES, hidden_size=72, intermediate_size=44, num_attention_heads=6, num_key_value_heads=3, hidden_act="gelu",
        rope_parameters=LONGROPE | {"rope_theta": 5e4, "attention_factor": 1.3}, original_max_position_embeddings=24,
    ),
}  # fmt: skip
# Values for test_keys_walk where the general ones say nothing.
CHANGED: dict[str, list[Any]] = {
    "rope_parameters.rope_type": ["default", "su", "yarn", "linear"],
    "rope_parameters.partial_rotary_factor": [1.0],
    "rope_parameters.attention_factor": [0.8],
}


def test_a_sequence_that_outgrows_its_rope_is_computed_again(tmp_path: Path) -> None:
    """Whatever calls take it past 24 tokens, and back: the logits are those of one prefill of all its tokens."""
    folder = parity.save_checkpoint(CASES["longrope-past-it-at-once"], tmp_path / "model")
    session = load(
        build(open_job(None, str(folder)), out=tmp_path / "bundle", target="torch", max_seq_len=64, buckets=(64,))
    )
    tokens = parity.random_tokens(40, 131)

    def at_once(count: int) -> np.ndarray:
        session.reset()
        return session.prefill(tokens[:count])[-1]

    wanted = {count: at_once(count) for count in (10, 24, 25, 26, 40)}
    near = partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-5)
    session.reset()
    near(session.prefill(tokens[:10])[-1], wanted[10])
    near(session.prefill(tokens[10:24])[-1], wanted[24])
    near(session.decode(tokens[24]), wanted[25])
    near(session.decode(tokens[25]), wanted[26])
    near(session.prefill(tokens[26:])[-1], wanted[40])
    fresh = list(session.generate(tokens[:20], max_new_tokens=10))
    assert list(session.generate(tokens[:20], max_new_tokens=10, resume=True)) == fresh


def test_dummy_weights_have_the_published_layout() -> None:
    job = open_job("phi3", "dummy", config=CASES["longrope-past-it-at-once"].to_dict())
    assert check(job).ok
    headers = job.checkpoint.headers
    assert headers["layers.0.self_attn.qkv_proj.weight"].shape == (144, 72)
    assert headers["layers.0.mlp.gate_up_proj.weight"].shape == (88, 72)


# --- config.json

RAW: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44,
}  # fmt: skip
STRETCHED = {"max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"partial_rotary_factor": 0.5, "rope_theta": 250000.0, "original_max_position_embeddings": 16384},
        STRETCHED | {"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
        STRETCHED | {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 99}},
        STRETCHED | {"rope_scaling": LONGROPE | {"factor": 3.0}},
    ],
)
def test_absent_keys_are_the_defaults_of_transformers(words: dict[str, Any]) -> None:
    theirs = Phi3Config.from_dict(RAW | words)
    ours = OurConfig.from_hf(RAW | words)
    assert ours == OurConfig.from_hf(theirs.to_dict())
    assert (ours.max_positions, ours.num_kv_heads) == (theirs.max_position_embeddings, theirs.num_key_value_heads)
    assert (ours.eps, ours.tied_head, ours.windows) == (theirs.rms_norm_eps, theirs.tie_word_embeddings, (None, None))
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.partial == theirs.rope_parameters["partial_rotary_factor"]
    if ours.rope.kind == "longrope":
        assert ours.rope.max_positions == theirs.original_max_position_embeddings


# The config.json of microsoft/Phi-4-mini-instruct, but for the names of its code.
PHI4_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 199999,
    "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False,
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3", "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
    "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0", "use_cache": True, "vocab_size": 200064,
}  # fmt: skip


def test_a_published_config() -> None:
    ours = OurConfig.from_hf(PHI4_MINI)
    assert (ours.head_dim, ours.rope.channels(ours.head_dim), ours.max_positions) == (128, 96, 131072)
    assert (ours.rope.factor, ours.rope.max_positions, ours.windows[31]) == (32.0, 4096, 262144)


def test_su_is_what_longrope_was_called_first() -> None:
    scaling = PHI4_MINI["rope_scaling"]
    assert OurConfig.from_hf(PHI4_MINI | {"rope_scaling": scaling | {"type": "su"}}) == OurConfig.from_hf(PHI4_MINI)


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "rope_type", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("BU122", "rope_type", {"rope_scaling": {"type": "sue"}}),
        ("BU121", "long_factor", {"rope_scaling": LONGROPE | {"long_factor": LONG[1:]}}),
        ("BU121", "original_max_position_embeddings", {"original_max_position_embeddings": None}),
        ("BU121", "sliding_window", {"sliding_window": 0}),
        ("BU122", "attention_bias", {"attention_bias": True}),
        ("BU122", "full_attn_mod", {"full_attn_mod": 2}),
        ("BU120", "layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(RAW | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
