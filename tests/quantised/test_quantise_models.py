"""`--quantize`: whole models, against transformers' with weights that are rounded one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import build, check
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from tests.models import family
from tests.quantised.checkpoints import is_quantised, plain
from tests.quantised.test_quantise import rounded

PAIRS = [
    ("llama", "int8"), ("phi3", "fp8"), ("qwen3_moe", "int4-g32"), ("deepseek_v3", "mxfp4"), ("llama", "fp8-block"),
    ("deepseek_v3", "int8"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantise")


@pytest.mark.parametrize(("name", "recipe"), PAIRS)
def test_logits_are_those_of_rounded_weights(folder: Path, tmp_path: Path, name: str, recipe: str) -> None:
    source = plain(name, folder)
    tensors = load_file(source / "model.safetensors")
    exact = {n: rounded(array, recipe) if is_quantised(n, array) else array for n, array in tensors.items()}
    save_file(exact, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((source / "config.json").read_text("utf-8"), "utf-8")
    tokens, wanted = family.reference(tmp_path)
    job = open_job(checkpoint=str(source), options=GraphOptions(quantize=recipe))
    assert not check(job).findings
    packed = pack_job(job)
    assert len(packed.names) >= sum(is_quantised(n, array) for n, array in tensors.items() if ".experts." not in n)
    for each in (job, packed.job):
        family.assert_near(family.eager_logits(each, tokens, family.PROMPT), wanted, "torch")


def test_a_bundle_says_how_its_weights_were_quantised(folder: Path, tmp_path: Path) -> None:
    job = open_job(checkpoint=str(plain("llama", folder)), options=GraphOptions(quantize="int8"))
    bundle = build(job, out=tmp_path / "b", target="torch", max_seq_len=32, buckets=(8,))
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    assert manifest["graph_options"] == {"quantize": "int8"}
    assert manifest["weights_form"] == "packed"
    again = job_of_bundle(manifest, None)
    assert again.graph.options.quantize == "int8"
    entry = again.plan.entries["model.layers.0.mlp.up_proj.weight"]
    assert entry.sources[entry.region.nests[0].source].name == "quantise by int8"
    sizes = {text: dry_run(job, "torch", 32, 1, {}, weights_form=text) for text in ("packed", "float")}
    assert str(sizes["packed"].rows) != str(sizes["float"].rows)


def test_groups_that_do_not_divide(folder: Path) -> None:
    with pytest.raises(BringupError, match="BU414") as caught:
        open_job(checkpoint=str(plain("llama", folder)), options=GraphOptions(quantize="int4-g128"))
    assert "give int4-g32, or int8" in caught.value.findings[0].help
