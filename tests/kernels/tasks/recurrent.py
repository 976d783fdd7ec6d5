"""Steps of recurrent layers: prompts of several tokens, and decode."""

from dataclasses import replace

from bringup.compile.kernels.select.registry import calls_of
from tests.kernels.recurrent.functions import CHUNKS, DECODE, RAGGED, convolution, delta_rule, state_space
from tests.kernels.tasks.task import Task, task_of


def convolved(dtype: str, *, decode: bool) -> Task:
    """A convolution of 4 taps."""
    return task_of(convolution(DECODE if decode else RAGGED, 37, 4, dtype, decode=decode, bias=True), "out")


def delta_ruled(keys: int, dtype: str, *, decode: bool) -> Task:
    """The gated delta rule, of one warp or, with more than 128 channels of a key, two."""
    step = DECODE if decode else RAGGED
    return task_of(delta_rule(step, (1, 2), (keys, 16), dtype, decode=decode), "out")


def state_spaced(keys: int, *, decode: bool) -> Task:
    """The state space of Mamba 2, token by token: of one warp or, with more than 128 channels of a key, two."""
    step = DECODE if decode else RAGGED
    return task_of(state_space(step, (1, 2), (keys, 16), ("float32", "float32"), decode=decode), "out")


def state_space_in_chunks() -> Task:
    """The state space of prompts with up to three chunks."""
    return task_of(state_space(CHUNKS, (1, 2), (24, 20), ("bfloat16", "float32"), decode=False), "out")


def decays_of_heads() -> Task:
    """The first kernel of the state space in chunks, with 80 value heads: their decays are added in three turns."""
    task = task_of(state_space(CHUNKS, (1, 80), (24, 4), ("bfloat16", "float32"), decode=False), "out")
    return replace(task, calls=(calls_of(task.graph, task.graph.groups[0], "sm_80") or ())[:1])


def delta_in_chunks() -> Task:
    """The gated delta rule of prompts with up to three chunks."""
    return task_of(delta_rule(CHUNKS, (1, 2), (24, 20), "bfloat16", decode=False), "out")
