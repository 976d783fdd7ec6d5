"""Graph options reach the graph, the layers that read them, the keys, and the manifest; a graph need not know them."""

from __future__ import annotations

from pathlib import Path

import pytest

import bringup
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import Job
from bringup.compile.program.assemble import Stage
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.stage_key import stage_inputs
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from bringup.graphs import GraphOptions, KVCache, Module, State, current_options, graph_options
from bringup.graphs.layers.mla import LatentAttention
from bringup.graphs.layers.sparse_indexer import Indexer
from tests.cli.conftest import SMALL
from tests.cli.headers import gpt2_config

CONFIG = gpt2_config(**SMALL)
HALF = GraphOptions(cache_dtype="float16")


def small(options: GraphOptions = GraphOptions()) -> Job:  # noqa: B008  frozen
    return bringup.open_job(None, "dummy", config=CONFIG, dtype="float32", options=options)


def attention_caches() -> dict[str, Module]:
    return {
        "grouped": KVCache(2, 4, window=8),
        "MLA": LatentAttention(8, 2, q=None, c=4, n=2, p=2, v=2),
        "indexer": Indexer(8, 4, heads=2, d=4, top_k=2),
    }


def test_every_attention_cache_takes_its_dtype_from_the_options() -> None:
    with graph_options(HALF):
        halves = attention_caches()
    for name, module in attention_caches().items():
        chosen = {leaf.declared_dtype for _, leaf in halves[name].leaves(State)}
        assert chosen == {"float16"}, name
        assert {leaf.declared_dtype for _, leaf in module.leaves(State)} == {None}, name
        assert module.structural_key() != halves[name].structural_key(), name


def test_a_job_gives_its_options_to_the_graph() -> None:
    job = small(HALF)
    assert job.graph.options == HALF
    assert job.graph.state_bytes() * 2 == small().graph.state_bytes()
    assert {leaf.declared_dtype for _, leaf in job.graph.leaves(State)} == {"float16"}
    assert current_options() == GraphOptions()


def keys(job: Job) -> tuple[dict[str, str] | None, CacheKeys]:
    layout = layout_of(job.graph, 64, (8,))
    point = layout.entries[-1]
    stage = Stage(name="decode.layer0", part="layer", path=layout.layers[0], point=point)
    return stage_inputs(job.graph, layout, stage, "torch"), CacheKeys.of(job, layout, select("torch", None))


def test_options_are_in_the_keys_of_stages_and_bundles() -> None:
    (stage, bundle), (other_stage, other_bundle) = keys(small()), keys(small(HALF))
    assert stage is not None
    assert other_stage is not None
    assert {name for name in stage if stage[name] != other_stage[name]} == {"options", "structure"}
    assert bundle.bundle is not None
    assert other_bundle.bundle is not None
    changed = {name for name in bundle.bundle if bundle.bundle[name] != other_bundle.bundle[name]}
    assert changed == {"options", "tables"}


def test_a_manifest_has_the_options_and_the_job_of_a_bundle_too(tmp_path: Path) -> None:
    bundle = bringup.build(small(), out=tmp_path / "b", target="torch", buckets=(8,))
    manifest = read_manifest(bundle)
    assert manifest["graph_options"] == {}
    job = job_of_bundle({**manifest, "graph_options": HALF.non_default()}, None)
    assert job.graph.options == HALF
    with pytest.raises(BringupError, match="BU024: graphs have no option `cache_dtyp`"):
        job_of_bundle({**manifest, "graph_options": {"cache_dtyp": "float16"}}, None)


@pytest.mark.parametrize("dtype", ["fp16", "int8", 16, ["float16"]])
def test_an_option_refuses_what_it_does_not_take(dtype: object) -> None:
    with pytest.raises(BringupError, match=r"BU024: invalid value .* for `cache_dtype`"):
        GraphOptions(cache_dtype=dtype)  # type: ignore[arg-type]


def test_open_job_takes_options_only() -> None:
    with pytest.raises(BringupError, match="BU024: `options` is a dict, not a `GraphOptions`"):
        bringup.open_job(None, "dummy", config=CONFIG, options={"cache_dtype": "float16"})  # type: ignore[arg-type]
