"""Operations that are lowered wrongly: bisecting names the operation, its line and the step; verify fails without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bringup.compile.parity.feeds import PADDING
from bringup.compile.parity.parity import Parity
from bringup.compile.verify.command import parity_of
from tests.compile.planted import Change, compiled, job, keeps_another_row, line_of, plant, saved, times

slow = pytest.mark.slow
MUL, MLP, GATE = "aten.mul.Tensor", "self.down_proj(", "ACTIVATIONS[self.activation]("


@dataclass(frozen=True)
class Fault:
    """Where an operation is planted, and where it has to be found: the first entry and call that it is in."""

    stage: str
    target: str
    source: str
    change: Change
    entry: str
    call: str
    layers: int = 2


# Each part of a program, each entry point, an error of 1 % and a NaN: no product of these.
FAULTS = {
    "one-layer": Fault("layer1", MUL, MLP, times(1.01), "prefill_16", "model.layers.1"),
    "prologue": Fault(
        "prologue", "aten.index.Tensor", "rows_of(self.weight", times(1.01), "prefill_16", "prologue", layers=1
    ),
    "epilogue": Fault("epilogue", "bringup.linear.default", "product(x", times(1.01), "prefill_16", "epilogue"),
    "nan-in-decode": Fault(
        "decode.layer", "bringup.attention.default", "attention(", times(float("nan")), "decode", "model.layers.0"
    ),
    "one-bucket": Fault("prefill_32.layer0", "bringup.silu.default", GATE, times(1.01), "prefill_32", "model.layers.0"),
    "decode": Fault("decode.layer1", "bringup.rms_norm.default", "rms_norm(", times(1.01), "decode", "model.layers.1"),
}
# What is decomposed has other operations, and gives states as values.
DECOMPOSED = {
    "left-for-the-next-step": Fault(
        "decode.layer", "aten.index_copy.default", "self.k", keeps_another_row, "decode", "model.layers.0"
    ),
    "nan-in-decode": Fault(
        "decode.layer", "aten.softmax.int", "attention(", times(float("nan")), "decode", "model.layers.0"
    ),
}
CASES = [
    ("cpu", "prologue", "bfloat16"),
    *[
        pytest.param(target, name, dtype, marks=slow)
        for target, name, dtype in (
            ("cpu", "one-layer", "bfloat16"),
            ("cpu", "prologue", "float32"),
            ("cpu", "epilogue", "bfloat16"),
            ("cpu", "nan-in-decode", "float32"),
            ("cpu", "one-bucket", "bfloat16"),
            ("cpu", "decode", "bfloat16"),
            ("iree-cpu", "left-for-the-next-step", "float32"),
            ("iree-cpu", "nan-in-decode", "bfloat16"),
        )
    ],
]


@pytest.mark.parametrize(("target", "name", "dtype"), CASES)
def test_the_operation_is_found(
    target: str, name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = (FAULTS if target == "cpu" else DECOMPOSED)[name]
    checkpoint = saved(tmp_path / "model", dtype, fault.layers)
    plant(monkeypatch, fault.stage, fault.target, fault.source, fault.change)
    buckets = (16, 32) if name == "one-bucket" else (16,)
    session = compiled(job(checkpoint), tmp_path / "b", target=target, buckets=buckets)
    found = parity_of(session, job(checkpoint), bisect=True, save=tmp_path / "saved")
    departing = [difference.phase for difference in found.differences if not difference.ok]
    assert fault.entry in departing  # so that a plain `verify` fails too
    assert [finding.code for finding in found.findings if finding.severity == "error"] == ["BU704"]
    op = found.op
    assert op is not None
    assert (op.entry, op.call, op.target) == (fault.entry, fault.call, fault.target)
    assert fault.source in Path(op.file).read_text("utf-8").splitlines()[op.line - 1]
    assert op.alone is (name != "left-for-the-next-step")
    assert_saved(tmp_path / "saved" / "op.safetensors", found)


def assert_saved(file: Path, found: Parity) -> None:
    """The operation's tensors are there, and show how far it is off."""
    assert found.op is not None
    tensors = load_file(file)
    inputs = sorted(name.partition(" ")[0] for name in found.op.inputs)
    assert sorted(tensors) == sorted(["compiled", "torch", *(f"input:{name}" for name in inputs)])
    assert tensors["torch"].shape == found.op.shape
    rows = slice(None)
    if found.op.entry == f"prefill_{found.op.shape[0]}":
        rows = slice(-PADDING)  # those of the prompt
    ours, right = (tensors[name].astype(np.float64)[rows] for name in ("compiled", "torch"))
    off = np.abs(ours - right).max() / np.abs(right).max()
    assert np.isnan(off) == np.isinf(found.op.relative)
    assert np.isnan(off) or off == pytest.approx(found.op.relative)


@slow
def test_an_operation_that_is_wrong_only_together_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = saved(tmp_path / "model")
    plant(monkeypatch, "layer1", MUL, MLP, times(1.01), fused=True)
    session = compiled(job(checkpoint), tmp_path / "b", target="iree-cpu")
    op = parity_of(session, job(checkpoint), bisect=True).op
    assert op is not None
    assert (op.call, op.target, op.alone) == ("model.layers.1", MUL, False)
    assert MLP in Path(op.file).read_text("utf-8").splitlines()[op.line - 1]


@slow
def test_a_bundle_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What made the bundle is wrong no more: nothing departs when it is compiled again."""
    checkpoint = saved(tmp_path / "model", "float32")
    with monkeypatch.context() as patch:
        plant(patch, "layer1", MUL, MLP, times(1.01))
        session = compiled(job(checkpoint), tmp_path / "b")
    found = parity_of(session, job(checkpoint), bisect=True)
    assert not found.ok
    (finding,) = found.findings
    assert finding.code == "BU702"
    assert "compiled again" in finding.message


@slow
@pytest.mark.parametrize(("target", "dtype"), [("torch", "float32"), ("cpu", "bfloat16")])
def test_a_sound_program_has_no_departure(target: str, dtype: str, tmp_path: Path) -> None:
    """In bfloat16 its operations are compared one by one, though logits agree."""
    checkpoint = saved(tmp_path / "model", dtype)
    session = compiled(job(checkpoint), tmp_path / "b", target=target)
    found = parity_of(session, job(checkpoint), bisect=True)
    assert found.ok
    assert (found.op, found.calls, found.findings) == (None, {}, [])


def test_planted_faults_are_lines_of_the_model() -> None:
    """The helper reads stack traces as torch writes them."""
    from types import SimpleNamespace

    trace = (
        'File "/x/llama.py", line 3, in forward\n    x = layer(x)\nFile "/x/norm.py", line 9, in forward\n    return y'
    )
    assert line_of(SimpleNamespace(meta={"stack_trace": trace})) == "return y"
