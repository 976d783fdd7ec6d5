"""Rope settings of every type, in the form of config.json, for heads of 16 channels."""

from __future__ import annotations

from typing import Any

D, STATED = 16, 96
SHORT = [1.0, 1.05, 1.1, 1.3, 1.4, 1.6, 2.0, 2.5]
LONG = [1.1, 1.4, 2.0, 3.0, 5.0, 9.0, 16.0, 30.0]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 24}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 24,
}
TYPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    "proportional": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "proportional-factor": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e3,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": YARN,
    "yarn-of-all": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn-one-mscale": YARN | {"mscale": 0.7},
    "yarn-attention-factor": YARN | {"attention_factor": 0.9},
    "yarn-not-truncated": YARN | {"truncate": False, "beta_fast": 3.0, "beta_slow": 0.5},
    "yarn-truncated": YARN | {"truncate": True, "beta_fast": 3.0, "beta_slow": 0.5},
    "yarn-one-pair": YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "longrope": LONGROPE,
    "longrope-factor": LONGROPE | {"factor": 8.0},
    "longrope-attention-factor": LONGROPE | {"attention_factor": 1.7},
}
