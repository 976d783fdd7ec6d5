"""What `bringup verify` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bringup.compile.parity.parity import Difference, Layer, Op, Parity
from bringup.diagnostics import Diagnostic
from bringup.render.parity import parity_text
from bringup.render.terminal import Paint

TOLERANCE = 2e-4


def parity(worst: float) -> Parity:
    result = Parity(
        model="gpt2", target="iree-cpu", dtype="float32", reference="transformers 5", tolerance=TOLERANCE, tokens=77
    )
    result.differences.append(
        Difference(phase="prefill_64", rows=61, relative=worst, excess=worst / TOLERANCE, wrong=0, exempt=2)
    )
    return result


def layer(name: str, output: float = 0.0, alone: float | None = 0.0) -> Layer:
    return Layer(name=name, given=0.0, output=output, alone=alone)


def test_agreement_is_two_lines() -> None:
    result = parity(9e-7)
    result.modules = [layer("wte"), layer("h.0", 3e-7)]
    assert parity_text(result, "gpt2.bundle", Paint()).splitlines() == [
        "prefill_64  9.0e-07 of max |reference| over 61 rows, 0.0045 of the bound; "
        "top token wrong in 0, too close to call in 2",
        "",
        "all 2 modules agree; the largest error is 3.0e-07, of h.0",
        "",
        "gpt2.bundle: agrees on iree-cpu with transformers 5 (77 tokens, float32, tolerance 0.0002)",
    ]


def test_an_operation_that_is_off_on_average_is_shown() -> None:
    result = parity(9e-7)
    result.differences = [replace(result.differences[0], scaled=2.5)]
    first, *_ = parity_text(result, "gpt2.bundle", Paint()).splitlines()
    assert first.endswith("too close to call in 2; an operation is off on average, by 2.5 of the bound")


def test_modules_of_the_layer_that_departs_are_shown() -> None:
    result = parity(0.5)
    inner = [layer("h.5.ln_1"), layer("h.5.attn.c_proj", 0.4), layer("h.5.attn", 0.4, 0.4), layer("h.5", 0.5, 0.5)]
    before = [part for i in range(5) for part in (layer(f"h.{i}.ln_1"), layer(f"h.{i}"))]
    result.modules = [
        layer("wte"),
        *before,
        *inner,
        layer("h.6.ln_1", 0.5),
        layer("h.6", 0.5, 1e-7),
        layer("ln_f", 0.5, None),
    ]
    result.findings.append(Diagnostic(code="BU701", message="the first module that departs", parameter="h.5.attn"))
    lines = parity_text(result, "gpt2", Paint()).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("module"))
    assert [line.split() for line in lines[start : start + 10]] == [
        ["module", "input", "output", "alone"],
        ["wte", "0", "0", "0"],
        ["…", "5", "more", "that", "agree"],
        ["h.5.ln_1", "0", "0", "0"],
        ["h.5.attn.c_proj", "0", "4.0e-01", "0", "<-", "inherits"],
        ["h.5.attn", "0", "4.0e-01", "4.0e-01", "<-", "departs"],
        ["h.5", "0", "5.0e-01", "5.0e-01", "<-", "departs", "too"],
        ["h.6", "0", "5.0e-01", "1.0e-07", "<-", "inherits"],
        ["ln_f", "0", "5.0e-01", "-", "<-", "departs", "too"],
        [],
    ]
    assert "error[BU701]" in lines[-3]


def test_modules_that_differ_while_the_logits_agree_are_not_called_wrong() -> None:
    """Such as q_proj, if the adapter reorders its rows for rope in halves."""
    result = parity(9e-7)
    result.modules = [layer("wte"), *(layer(f"h.0.{x}_proj", 1.3, 1.3) for x in "qk"), layer("h.0", 3e-7)]
    lines = parity_text(result, "cohere", Paint()).splitlines()
    assert [line.split() for line in lines[2:7]] == [
        ["module", "input", "output", "alone"],
        ["wte", "0", "0", "0"],
        ["h.0.q_proj", "0", "1.3e+00", "1.3e+00", "<-", "differs"],
        ["h.0.k_proj", "0", "1.3e+00", "1.3e+00", "<-", "differs"],
        ["h.0", "0", "3.0e-07", "0"],
    ]
    assert lines[8] == "the logits agree although these outputs differ: h.0.q_proj, h.0.k_proj"
    assert "departs" not in "\n".join(lines)


def test_the_operation_and_its_line(tmp_path: Path) -> None:
    source = tmp_path / "llama.py"
    source.write_text("def forward(x):\n    return x * 2\n")
    result = parity(0.5)
    result.calls = {"prologue": 0.0, "h.0": 0.01, "epilogue": 0.0}
    result.op = Op(
        entry="decode", call="h.0", name="mul_3", target="aten.mul.Tensor", file=str(source), line=2, shape=(1, 4),
        dtype="float32", inputs=("x float32[1, 4]",), relative=0.01, tolerance=2e-5, alone=True,
    )  # fmt: skip
    lines = parity_text(result, "gpt2", Paint()).splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["compiled", "for", "iree-cpu", "from", "torch"],
        ["prologue", "0"],
        ["h.0", "1.0e-02", "<-", "departs"],
        ["epilogue", "0"],
    ]
    assert lines[7:13] == [
        "aten.mul.Tensor in h.0 of decode",
        f" --> {source}:2",
        "  |",
        "2 |     return x * 2",
        "  |     ^^^^^^^^^^^^ aten.mul.Tensor gives float32[1, 4]",
        "  = inputs: x float32[1, 4]",
    ]


def test_json_has_no_infinity() -> None:
    import json

    result = parity(float("inf"))
    result.modules = [layer("h.0", float("inf"), None)]
    text = json.dumps(result.as_json(), allow_nan=False)
    assert json.loads(text)["layers"] == {"h.0": None}
