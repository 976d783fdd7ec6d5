"""Faults in a graph or its weights: verify names the module, or the tensor, and what only inherits is told apart."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bringup.compile.cache.store import Store
from bringup.compile.job import Job, open_job
from bringup.compile.parity.feeds import ring_rows
from bringup.compile.parity.parity import Parity
from bringup.compile.verify.command import _context, parity_of, verify
from bringup.compile.verify.evidence import GRAPH
from bringup.diagnostics import BringupError
from bringup.graphs.ops import attention
from tests.compile.planted import CONFIG, compiled, job, saved

SWAPPED = """
from bringup.adapters.algebra.expr import S
from bringup.adapters.llama import adapter as published
from bringup.adapters.planning.adapter import Adapter


def adapter(config):
    table = published(config)
    built = Adapter("swapped", table.defaults, table.prefix, drops=table.drops)
    for rule in table.rules:
        built[rule.pattern.replace("{x:q|k|v|o}", "{x:v|o}")] = rule.expr
    at = "model.layers.{L}.self_attn.%s_proj.{p:weight|bias}"
    source = at.removeprefix("model.").replace("{p:weight|bias}", "{p}")
    built[at % "q"], built[at % "k"] = S(source % "k"), S(source % "q")
    return built
"""


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def checkpoint(request, tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("modules") / request.param, request.param)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Store:
    """Of stages whose graph was not changed: another setting of a module is another key."""
    return Store(tmp_path_factory.mktemp("modules-cache"))


def verified(wrong: Job, out: Path, cache: Store | None = None) -> Parity:
    return parity_of(compiled(wrong, out, target="torch", cache=cache), wrong)


def only(found: Parity) -> tuple[str, str]:
    assert not found.ok
    assert not all(difference.ok for difference in found.differences)
    (finding,) = found.findings
    return finding.code, finding.parameter


def test_epsilon_of_one_norm(checkpoint: Path, cache: Store, tmp_path: Path) -> None:
    wrong = job(checkpoint)
    wrong.graph.model.layers[1].input_layernorm.eps = 1.0
    found = verified(wrong, tmp_path / "b", cache)
    assert only(found) == ("BU701", "model.layers.1.input_layernorm")
    alone = {layer.name for layer in found.modules if (layer.alone or 0) > found.tolerance}
    assert alone == {"model.layers.1.input_layernorm", "model.layers.1"}  # all after them only inherit
    inherited = {name for name, error in found.layers.items() if error > found.tolerance}
    assert {"model.layers.1.self_attn.q_proj", "model.norm", "lm_head"} <= inherited
    assert list(found.layers) == [layer.name for layer in found.modules]


def test_a_setting_between_modules(checkpoint: Path, cache: Store, tmp_path: Path) -> None:
    """The first output that departs is o_proj's, which is right: the attention around it is not."""
    wrong = job(checkpoint)
    wrong.graph.model.layers[1].self_attn.scale *= 2
    found = verified(wrong, tmp_path / "b", cache)
    assert only(found) == ("BU701", "model.layers.1.self_attn")
    assert "its own forward" in found.findings[0].message
    first = next(name for name, error in found.layers.items() if error > found.tolerance)
    assert first == "model.layers.1.self_attn.o_proj"


def test_two_rules_swapped(checkpoint: Path, cache: Store, tmp_path: Path) -> None:
    table = tmp_path / "table.py"
    table.write_text(SWAPPED)
    # queries and keys have one shape here: check finds nothing
    wrong = open_job(checkpoint=str(checkpoint), adapter=str(table))
    found = verified(wrong, tmp_path / "b", cache)
    assert only(found) == ("BU701", "model.layers.0.self_attn.q_proj")
    assert found.findings[0].sources == ("model.layers.0.self_attn.q_proj.weight",)


def test_a_window_is_only_wrong_behind_it(checkpoint: Path, cache: Store, tmp_path: Path) -> None:
    """A prompt within the window would agree, and says so."""
    wrong = job(checkpoint)
    wrong.graph.model.layers[1].self_attn.window = 14
    session = compiled(wrong, tmp_path / "b", target="torch", cache=cache)
    short = parity_of(session, wrong, 8, 2)
    assert short.ok
    assert [finding.code for finding in short.findings] == ["BU709"]
    assert "sliding window (12)" in short.findings[0].message
    assert only(parity_of(session, wrong)) == ("BU701", "model.layers.1.self_attn")


@pytest.mark.slow
def test_a_ring_is_only_wrong_once_it_begins_anew(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph's own code, with rings as the program has them: the module is named in the step that departs."""
    right = job(checkpoint)
    session = compiled(right, tmp_path / "right", target="torch", context=256)
    assert ring_rows(session.interface) == [64]
    found = parity_of(session, right, bisect=True)
    assert (found.ok, found.tokens, found.findings) == (True, 64 + 16 + 4, [])
    real = attention.ring_positions
    monkeypatch.setattr(
        attention, "ring_positions", lambda step, ring: real(step, ring) + (step.lengths[:, None] > ring).long()
    )
    session = compiled(right, tmp_path / "wrong", target="torch", context=256, cache=Store(tmp_path / "other"))
    short = parity_of(session, right, 20, 2)
    assert short.ok
    assert [(note.code, note.help) for note in short.findings] == [
        ("BU709", "give a prompt of at least 80 tokens: --prompt-length 80")
    ]
    assert only(parity_of(session, right)) == ("BU701", "model.layers.1.self_attn")


@pytest.mark.parametrize(
    ("window", "positions", "context"),
    [(12, 8192, 4 * 320), (1024, 131072, 4 * 1280), (12, 1024, 77), (4096, 131072, 77), (None, 8192, 77)],
)
def test_a_model_is_verified_with_rings_where_few_tokens_fill_them(
    window: int | None, positions: int, context: int
) -> None:
    config = CONFIG.to_dict() | {"sliding_window": window, "max_position_embeddings": positions}
    config["layer_types"] = ["full_attention", "sliding_attention" if window else "full_attention"]
    opened = open_job("llama", "dummy", config={**config, "architectures": ["MistralForCausalLM"]})
    assert _context(opened, None, None, 16) == context


def test_only_the_decode_step(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's own code for one query: modules are compared in the step that departs."""
    real = attention._one_query
    monkeypatch.setattr(attention, "_one_query", lambda *args: real(*args) * 1.5)
    wrong = job(checkpoint)
    found = verified(wrong, tmp_path / "b")
    departing = [difference.phase for difference in found.differences if not difference.ok]
    assert departing == ["decode"] if found.dtype == "float32" else [GRAPH, "decode"]
    assert only(found) == ("BU701", "model.layers.0.self_attn")


# --- weights of a bundle


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", pytest.param("model.rotary.cos", marks=pytest.mark.slow)]
)
def test_a_tensor_changed_in_a_bundle(checkpoint: Path, name: str, cache: Store, tmp_path: Path) -> None:
    """It is named as a weight; neither a module nor an operation is at fault."""
    out = compiled(job(checkpoint), tmp_path / "b", target="torch", cache=cache).folder
    file = out / "weights.safetensors"
    tensors = load_file(file)
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, file)
    manifest = json.loads((out / "manifest.json").read_text())
    with pytest.raises(BringupError, match="BU608"):  # it is not what was compiled
        verify(str(out))
    manifest["files"]["weights.safetensors"] = sha256(file.read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    found = verify(str(out), bisect=True)
    assert only(found) == ("BU705", name)
    assert json.loads((out / "parity.json").read_text())["findings"][0]["code"] == "BU705"
