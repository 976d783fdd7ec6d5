"""What selectors give for the shapes of whole families, not compiled: sizes and memory that kernels can have."""

from __future__ import annotations

import pytest

from benchmarks.kernels import SHAPES, attention_graph, latent_graph
from bringup.compile.kernels.architectures import ARCHITECTURES
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.select.attention_tiles import decode_tiles, prefill_tiles
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import OpGraph


@pytest.mark.parametrize("capability", list(ARCHITECTURES))
def test_tiles_are_powers_of_two(capability: str) -> None:
    """For any number of channels: 80, as DeepSeek's tiny configs have, once gave 25 keys."""
    for channels in range(8, 640, 8):
        for values in (channels, 32, 512):
            for wide in (False, True):
                for tiles in (
                    decode_tiles(wide, channels, values, 4, capability),
                    prefill_tiles(wide, channels, values, 32, capability),
                ):
                    assert all(size & (size - 1) == 0 < size for size in (tiles.rows, tiles.keys)), (channels, tiles)


def memory_of(calls: tuple[KernelCall, ...]) -> list[tuple[int, int]]:
    """Of each call: where in the scratch memory it begins to read or write last, and how much it says that it uses."""
    ends = [
        max(
            (each.offset for each in call.arguments if isinstance(each, Pointer) and each.buffer == SCRATCH), default=-1
        )
        for call in calls
    ]
    return [(end, call.scratch) for end, call in zip(ends, calls, strict=True)]


@pytest.mark.parametrize("stage", ["decode", "prefill"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calls_say_what_memory_they_use(dtype: str, stage: str) -> None:
    """Of attention, and of MLA, whose three kernels have what is between them in the scratch memory."""
    graphs: list[OpGraph] = [attention_graph(shape, dtype, stage) for shape in SHAPES]
    for graph in [*graphs, latent_graph(dtype, stage)]:
        calls = calls_of(graph, graph.groups[0], "sm_90")
        assert calls
        assert all(end < used or end == -1 for end, used in memory_of(calls)), graph.name
