"""The schedule of recurrent layers: a state is read and written once a step, whatever the number of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from bringup.compile.schedule.costs import bytes_by_buffer, cost_of
from bringup.compile.schedule.schedule import Launch, Schedule
from tests.runtime import recurrent as r
from tests.schedule.models import PREFILL, schedule_of
from tests.targets.recurrent import state_spaces as s

CHANNELS = 2 * r.KEY_HEADS * r.K + r.VALUE_HEADS * r.V
CONV, DELTA = 4 * (r.TAPS - 1) * CHANNELS, 4 * r.VALUE_HEADS * r.K * r.V  # bytes of a state of one sequence


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Schedule:
    return schedule_of(r.compiled(tmp_path_factory.mktemp("b") / "b", "schedule", max_batch_size=4))


def launch_of(schedule: Schedule, entry: str, name: str) -> Launch:
    return next(launch for launch in schedule.launches(entry) if launch.group.name == name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "tokens", "sequences"), [("decode_4", 4, 4), ("prefill_32_4", 32, 4), ("prefill_32", 32, 1)]
)
def test_bytes_and_operations(schedule: Schedule, entry: str, tokens: int, sequences: int) -> None:
    conv, delta = (launch_of(schedule, entry, name) for name in ("causal_conv", "gated_delta_rule"))
    of_conv, of_delta = (cost_of(each.graph, each.group, 64) for each in (conv, delta))
    assert (of_conv.cache, of_conv.weights) == (sequences * CONV, 4 * r.TAPS * CHANNELS)
    assert of_conv.written == sequences * CONV + 4 * tokens * CHANNELS
    assert of_conv.flops == 2 * r.TAPS * tokens * CHANNELS
    assert of_delta.cache == sequences * DELTA
    assert of_delta.written == sequences * DELTA + 4 * tokens * r.VALUE_HEADS * r.V
    assert of_delta.flops == 7 * tokens * r.VALUE_HEADS * r.K * r.V
    (state,) = delta.group.updates
    assert bytes_by_buffer(delta.graph, delta.group, 64)[state] == 2 * sequences * DELTA


def test_the_launches_of_a_layer(schedule: Schedule) -> None:
    """One product has all projections of the layer's input; the decay, with its softplus, is one launch."""
    names = [launch.group.name for launch in schedule.launches("decode_4")]
    begin = names.index("causal_conv") - 1
    assert names[begin : begin + 8] == [
        *("rms_norm+linear", "causal_conv", "silu", "exp+neg+add+clamp+abs+neg+exp+log1p+add+mul", "sigmoid"),
        *("gated_delta_rule", "rms_norm+silu+mul", "linear+add"),
    ]


@pytest.mark.slow
def test_bytes_and_operations_of_a_state_space(tmp_path: Path) -> None:
    settings = {"max_seq_len": s.CONTEXT, "max_batch_size": 2, "buckets": (PREFILL,)}
    schedule = schedule_of(build(s.job(), out=tmp_path / "b", target="schedule", **settings))
    state, values = 4 * s.HEADS * s.K * s.V, 4 * s.HEADS * s.V  # bytes of a sequence, and of a token
    for entry, tokens, sequences in (("decode_2", 2, 2), (f"prefill_{PREFILL}", PREFILL, 1)):
        launch = launch_of(schedule, entry, "state_space")
        cost = cost_of(launch.graph, launch.group, 64)
        assert (cost.weights, cost.cache) == (0, sequences * state)
        assert cost.written == sequences * state + tokens * values
        assert cost.flops == 5 * tokens * s.HEADS * s.K * s.V
