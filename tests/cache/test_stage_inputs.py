"""What a target does to a stage is in the key of that stage: its implementations of ops, and its own cache key.

Which target it is decides nothing beyond that, where several encode alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bringup.compile.cache.store import Store
from bringup.compile.program.assemble import Stage
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace_cached import StageCodec, _Source
from bringup.compile.targets.selection import select
from bringup.compile.targets.torch import TORCH
from bringup.graphs.gpt2 import GPT2, SIZES, GPT2Config
from bringup.graphs.ops.lowering import OpLowering

TINY = SIZES["gpt2"] | {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 32, "vocab_size": 21}
GRAPH = GPT2(GPT2Config.from_hf(TINY), "float32")


def one(*args: Any) -> None: ...


def other(*args: Any) -> None: ...


def inputs_of(codec: StageCodec, store: Store) -> dict[str, str] | None:
    layout = layout_of(GRAPH, 32)
    stage = Stage(name="prologue", part="prologue", path="", point=layout.entries[0])
    return _Source(GRAPH, layout, codec, store)._inputs(stage)


def codec_of(key: Mapping[str, str] | None = None, **implementations: Callable[..., Any]) -> StageCodec:
    lowering = OpLowering(opaque=frozenset(), implementations=implementations)
    return StageCodec(name="x", encode=lambda function, exported: b"", key={} if key is None else key, ops=lowering)


def test_an_implementation_of_an_op(tmp_path) -> None:
    store = Store(tmp_path)
    found = [inputs_of(codec_of(**ops), store) for ops in ({}, {"attention": one}, {"attention": other}, {"rope": one})]
    assert all(found)
    assert len({str(each) for each in found}) == 4
    assert inputs_of(codec_of(attention=one), store) == found[1]


def test_an_implementation_whose_code_is_not_known_has_no_key(tmp_path) -> None:
    assert inputs_of(codec_of(attention=lambda *args: one(*args)), Store(tmp_path)) is None


def test_the_cache_key_of_a_target(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `Selection.form` hands it on, which knows no options."""
    store, found = Store(tmp_path), list[Any]()
    for key in ({}, {"flags": "-O2"}, {"flags": "-O3"}, {"flag": "-O3"}, None):
        monkeypatch.setattr(type(TORCH), "cache_key", lambda self, options, key=key: key)
        found.append(inputs_of(select("torch").form, store))
    assert found.pop() is None
    assert len({str(each) for each in found}) == 4
    assert inputs_of(replace(codec_of(), key=None), store) is None


def test_whether_sizes_are_fixed(tmp_path) -> None:
    """A recorded stage has the greatest block table, one of torch.export any: neither serves for the other."""
    store = Store(tmp_path)
    recorded, exported = (inputs_of(replace(codec_of(), fixed_sizes=fixed), store) for fixed in (True, False))
    assert recorded
    assert exported
    assert {name for name in recorded if recorded[name] != exported[name]} == {"fixed sizes"}


def test_targets_that_encode_alike_share_their_stages(tmp_path) -> None:
    store = Store(tmp_path)
    alike = (
        ("schedule", "cuda:sm_80", "cuda:sm_90", "rocm:gfx942"),
        ("iree-cpu", "iree-cuda:sm_80"),
        ("llvm",),
        ("torch",),
    )
    found = [{str(inputs_of(select(name).form, store)) for name in names} for names in alike]
    assert [len(each) for each in found] == [1] * len(alike)
    assert len(set().union(*found)) == len(alike)
