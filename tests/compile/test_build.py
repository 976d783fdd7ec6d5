"""From weights to a bundle and back: the dict contract, phases, bundles that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import bringup
from bringup.adapters.apply.materialise import materialise
from bringup.compile.bundle.contents import plan_hash
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.trace import export_graph
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from bringup.graphs.gpt2 import GPT2, SIZES, GPT2Config

TINY = SIZES["gpt2"] | {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 21}
BUCKETS = (32,)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    config = tmp_path_factory.mktemp("config") / "config.json"
    config.write_text(json.dumps(TINY))
    return open_job("gpt2", "dummy", config=str(config))


@pytest.fixture(scope="module")
def bundle(job, tmp_path_factory) -> Path:
    return build(job, out=tmp_path_factory.mktemp("out") / "tiny.bundle", target="torch", buckets=BUCKETS)


@pytest.fixture(scope="module")
def opened(bundle: Path) -> Session:
    return bringup.load(bundle)


@pytest.fixture
def session(opened: Session) -> Session:
    """The one session, with nothing in its cache."""
    opened.reset()
    return opened


def weights(job: Job) -> dict[str, np.ndarray]:
    return materialise(job.plan, job.checkpoint)


def test_a_graph_and_a_dict_of_its_weights(job, session, tmp_path):
    graph = GPT2(GPT2Config.from_hf(TINY))
    out = build(graph, weights=weights(job), out=tmp_path / "b", target="torch", buckets=BUCKETS)
    tokens = [3, 1, 4]
    one = session.prefill(tokens)
    assert np.array_equal(bringup.load(out).prefill(tokens), one)
    assert np.abs(one).max() > 0


def test_missing_extra_and_misshaped_weights_are_reported_at_once_before_export(job, tmp_path, monkeypatch):
    monkeypatch.setattr("bringup.compile.pipeline.encoded_program", lambda *_, **__: pytest.fail("exported"))
    given = weights(job)
    del given["transformer.h.0.ln_1.weight"]
    given["transformer.h.9.extra"] = np.zeros(3, np.float32)
    given["transformer.h.1.mlp.c_fc.weight"] = given["transformer.h.1.mlp.c_fc.weight"].T
    with pytest.raises(BringupError) as caught:
        build(GPT2(GPT2Config.from_hf(TINY)), weights=given, out=tmp_path / "b", target="torch", buckets=BUCKETS)
    found = {(finding.code, finding.sources) for finding in caught.value.findings}
    assert found == {
        ("BU101", ("transformer.h.0.ln_1.weight",)),
        ("BU102", ("transformer.h.1.mlp.c_fc.weight",)),
        ("BU105", ("transformer.h.9.extra",)),
    }
    assert list(tmp_path.iterdir()) == []


def renamed(given: dict[str, np.ndarray], old: str, new: str) -> None:
    given[new] = given.pop(old)


@pytest.mark.parametrize(
    ("change", "message", "help"),
    [
        (
            lambda given: renamed(given, "transformer.h.0.ln_1.weight", "transformer.h.0.ln1.weight"),
            "`weights` has no `transformer.h.0.ln_1.weight`, [8]",
            "rename the key `transformer.h.0.ln1.weight`",
        ),
        (
            lambda given: given.pop("lm_head.weight"),
            "`weights` has no `lm_head.weight`, [21, 8]",
            "pass an array for each parameter: `graph.signature()` has their names and shapes",
        ),
        (
            lambda given: given.update(extra=np.zeros(3, np.float32)),
            "the graph has no parameter `extra`",
            "remove it from `weights`, or add the parameter to the graph",
        ),
        (
            lambda given: given.update({"transformer.h.0.mlp.c_fc.weight": np.zeros((8, 32), np.float32)}),
            "`transformer.h.0.mlp.c_fc.weight` is [8, 32] in `weights`, the graph declares [32, 8], axes `out:f in:m`",
            "pass the transpose",
        ),
        (
            lambda given: given.update({"transformer.ln_f.weight": np.zeros(9, np.float32)}),
            "`transformer.ln_f.weight` is [9] in `weights`, the graph declares [8], axes `m`",
            "pass arrays of the declared shape, or correct the graph's config",
        ),
        (
            lambda given: [
                renamed(given, name, name.removeprefix("transformer.")) for name in [*given] if name != "lm_head.weight"
            ],
            "28 names in `weights` lack the prefix `transformer.`, such as `wte.weight`",
            "add `transformer.` to these keys",
        ),
        (
            lambda given: [renamed(given, name, f"model.{name}") for name in [*given]],
            "29 names in `weights` have the prefix `model.`, such as `model.transformer.wte.weight`",
            "remove `model.` from these keys",
        ),
        (
            lambda given: given.update({"transformer.ln_f.weight": np.ones(8, np.int8)}),
            "`transformer.ln_f.weight` is int8 in `weights`, the graph declares float32",
            "pass arrays of floats, of any width",
        ),
        (
            lambda given: given.update({"transformer.ln_f.weight": np.full(8, np.nan, np.float32)}),
            "`transformer.ln_f.weight` holds NaN or infinity: 8 values, the first at `transformer.ln_f.weight`[0]",
            "trained weights are finite: was the tensor ever written, and does its dtype hold its values?",
        ),
    ],
)
def test_messages_on_weights_by_name(job, tmp_path, change, message, help):
    """There is no rule, no adapter and no file that a message could name."""
    given = weights(job)
    change(given)
    with pytest.raises(BringupError) as caught:
        build(job.graph, weights=given, out=tmp_path / "b", target="torch", buckets=BUCKETS)
    (finding,) = caught.value.findings
    assert (finding.message, finding.help) == (message, help)
    assert "-->" not in finding.text
    assert finding.declared is not None or finding.code != "BU102"


def test_names_without_a_prefix_and_one_that_is_missing(job, tmp_path):
    given = {name.removeprefix("transformer."): array for name, array in weights(job).items()}
    del given["lm_head.weight"]
    with pytest.raises(BringupError) as caught:
        build(job.graph, weights=given, out=tmp_path / "b", target="torch", buckets=BUCKETS)
    assert [finding.message for finding in caught.value.findings] == [
        "28 names in `weights` lack the prefix `transformer.`, such as `wte.weight`",
        "`weights` has no `lm_head.weight`, [21, 8]",
    ]


def test_bundle_is_described_by_its_manifest(job, bundle):
    manifest = read_manifest(bundle)
    assert manifest["weights"] == "dummy"
    assert manifest["plan"] == plan_hash(job.plan)
    assert manifest["aliases"] == {"lm_head.weight": "transformer.wte.weight"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest


def test_weights_file_is_safetensors_and_aligned(job, bundle):
    path = bundle / "weights.safetensors"
    expected = weights(job)
    with safe_open(path, "np") as file:
        assert set(file.keys()) == expected.keys() - {"lm_head.weight"}
        assert all(np.array_equal(file.get_tensor(name), expected[name]) for name in file.keys())  # noqa: SIM118
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert (header + 8) % 64 == 0


def test_generate_is_repeatable_and_seeded(session):
    greedy = [list(session.generate([1, 2], max_new_tokens=5)) for _ in range(2)]
    assert greedy[0] == greedy[1]
    drawn = [list(session.generate([1, 2], max_new_tokens=20, temperature=5.0, seed=s)) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert (
        len(list(session.generate([1, 2], max_new_tokens=999))) == 63
    )  # the context's end: 64 positions, one fed last


def test_prefill_in_pieces_equals_prefill_at_once(session):
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, 21, 40)]
    whole = session.prefill(tokens)[-1]
    session.reset()
    session.prefill(tokens[:7])
    for token in tokens[7:30]:
        session.decode(token)
    assert np.allclose(session.prefill(tokens[30:])[-1], whole, atol=1e-6)


@pytest.mark.parametrize(("tokens", "code"), [([], "BU015"), ([21], "BU015"), ([-1], "BU015"), ([0] * 65, "BU016")])
def test_bad_tokens_are_refused(session, tokens, code):
    with pytest.raises(BringupError, match=code):
        session.prefill(tokens)


def test_an_existing_bundle_is_unchanged_unless_forced(job, tmp_path):
    out = tmp_path / "b"
    build(job, out=out, target="torch", buckets=BUCKETS)
    before = (out / "manifest.json").stat().st_ino
    with pytest.raises(BringupError, match="BU011"):
        build(job, out=out, target="torch", buckets=BUCKETS, max_seq_len=32)
    assert (out / "manifest.json").stat().st_ino == before
    build(job, out=out, target="torch", buckets=BUCKETS, force=True)
    assert (out / "manifest.json").stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_failed_build_leaves_the_old_bundle_and_nothing_else(job, tmp_path, monkeypatch):
    out = build(job, out=tmp_path / "b", target="torch", buckets=BUCKETS)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bringup.compile.pipeline.place_weights", full)
    with pytest.raises(BringupError, match="BU902"):
        build(job, out=out, target="torch", buckets=BUCKETS, force=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert bringup.load(out).prefill([1]).shape == (1, 21)


def test_something_else_in_the_way_is_never_replaced(job, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    with pytest.raises(BringupError, match="BU012"):
        build(job, out=tmp_path / "mine", target="torch", buckets=BUCKETS, force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_phases(job, tmp_path):
    program = build(job, out=tmp_path / "program.txt", emit="program", max_seq_len=32).read_text()
    assert "prefill_32.layer0" in program
    mlir = build(job, out=tmp_path / "model.mlir", target="iree-cpu", emit="mlir", max_seq_len=32).read_text()
    assert '#flow.parameter.named<"model"::"transformer.h.1.attn.c_proj.weight">' in mlir
    assert "dense_resource" not in mlir


@pytest.mark.slow
def test_the_phase_of_the_other_compiler(job, tmp_path):
    settings = {"target": "iree-cpu", "emit": "vmfb", "max_seq_len": 32}
    assert build(job, out=tmp_path / "m.vmfb", dump_dir=tmp_path / "dump", **settings).stat().st_size
    assert {path.suffix for path in (tmp_path / "dump" / "iree").iterdir()} == {".mlir"}


def test_equal_layers_are_one_function():
    def functions(layers: int) -> int:
        graph = GPT2(GPT2Config.from_hf(TINY | {"n_layer": layers}))
        return len(export_graph(graph, layout_of(graph, 64, (64,))).interface.functions)

    assert functions(2) == functions(7) == 6  # prologue, layer, epilogue; prefill and decode


def test_dry_run_states_the_sizes_that_come_out(job, bundle):
    sizes = dry_run(job, "torch", None)
    header = int.from_bytes((bundle / "weights.safetensors").read_bytes()[:8], "little") + 8
    assert (bundle / "weights.safetensors").stat().st_size - header == sizes.weights
    assert sizes.cache_per_token == 2 * 2 * 8 * 4  # k and v, two layers, eight channels, float32
    assert sizes.parameters == 28


def test_unknown_target_phase_and_context_are_reported(job, tmp_path):
    for code, options in (
        ("BU006", {"target": "cpuu"}),
        ("BU008", {"emit": "mlr"}),
        ("BU007", {"max_seq_len": 65}),
    ):
        with pytest.raises(BringupError, match=code):
            build(job, out=tmp_path / "b", **options)


def test_running_a_compiled_bundle_needs_no_torch(job, session, tmp_path):
    """Its tokens are those of the bundle for `torch`."""
    out = build(job, out=tmp_path / "b", target="cpu", max_seq_len=32)
    code = (
        "import sys, bringup\n"
        f"print(list(bringup.load({str(out)!r}).generate([1, 2], max_new_tokens=3)))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == list(session.generate([1, 2], max_new_tokens=3))
