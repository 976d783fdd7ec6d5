"""cos and sin at positions that real contexts reach, as a compiled program computes them, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.pipeline import build
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.runtime.session import load
from bringup.graphs.config.rope import RopeConfig
from tests.graphs.angles import Angles

CONTEXT, SIZE, D = 140_000, 32, 64
EXACT = 2.0**-23  # float32's relative step: an angle of p radians is known to p times this, one way or the other
KINDS = {
    "default": RopeConfig(theta=1e6),
    "dynamic": RopeConfig(kind="dynamic", max_positions=4096, factor=8.0),
    "longrope": RopeConfig(
        kind="longrope", max_positions=4096, factor=32.0, short_factor=(1.0,) * 32, long_factor=(4.0,) * 32
    ),
}


def exact(rope: RopeConfig, first: int) -> np.ndarray:
    total, theta, factors = first + SIZE, rope.theta, np.ones(D // 2)
    if rope.kind == "dynamic" and total > rope.max_positions:
        theta *= (rope.factor * total / rope.max_positions - (rope.factor - 1)) ** (D / (D - 2))
    if rope.kind == "longrope":
        factors = np.array(rope.long_factor if total > rope.max_positions else rope.short_factor)
    angles = np.arange(first, total)[:, None] * theta ** (-np.arange(0, D, 2) / D) / factors
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize("target", [pytest.param("torch", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize(
    "kind", ["dynamic", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("default", "longrope"))]
)
def test_far_positions(kind: str, target: str, tmp_path: Path) -> None:
    rope = KINDS[kind]
    graph = Angles(rope, D, CONTEXT)
    bundle = build(
        graph, weights={}, out=tmp_path / "b", target=target, max_seq_len=CONTEXT, buckets=(SIZE,), all_logits=True
    )
    session = load(bundle)
    for first in (0, 4064, 4065, 20_000, 100_000, 131_000):
        step = sequence_step([0] * SIZE, first, SIZE, CONTEXT)
        step["block_table"] = step["block_table"][:, :1]  # nothing here has a cache
        off = float(np.abs(session.executor.step(f"prefill_{SIZE}", step)["logits"] - exact(rope, first)).max())
        print(f"{kind} {target} at {first:,}: {off:.1e}")
        assert off <= 2 * EXACT * (first + SIZE) + 1e-6
