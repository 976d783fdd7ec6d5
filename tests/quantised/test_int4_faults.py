"""One finding for each mistake in a checkpoint of AWQ, GPTQ or bitsandbytes: by headers, or else by values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.values import value_findings
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from tests.quantised.checkpoints import write
from tests.quantised.int4_formats import FORMATS

Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors], None]
BY_ACTIVATIONS = "gptq symmetric by activations"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Tensors, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("faults")

    def read(name: str) -> tuple[Tensors, dict[str, Any]]:
        quantised, _ = write("llama of words", FORMATS[name], folder)
        config = json.loads((quantised / "config.json").read_text("utf-8"))
        return load_file(quantised / "model.safetensors"), config

    return read


def opened(found: tuple[Tensors, dict[str, Any]], words: Mapping[str, Any], change: Change | None = None) -> Job:
    tensors, config = found
    if change:
        change(tensors)
    config["quantization_config"] |= words
    return open_job(None, dict_checkpoint(tensors, config))


def without(end: str) -> Change:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(end)]:
            del tensors[name]

    return change


def edited(end: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(end)]:
            tensors[name] = np.ascontiguousarray(edit(tensors[name]))

    return change


HEADERS: list[tuple[str, Mapping[str, Any], Change | None, str, str]] = [
    ("gptq", {"group_size": 64}, None, "BU102", "set `group_size` to 32"),
    ("awq", {"group_size": 64}, None, "BU102", "set `group_size` to 32"),
    ("awq", {"group_size": -1}, None, "BU102", "`group_size` is -1"),
    ("awq of rows", {"group_size": 32}, None, "BU102", "`group_size` is 32"),
    ("gptq", {"group_size": 0}, None, "BU121", "`group_size` is 0"),
    ("gptq", {"group_size": True}, None, "BU121", "`group_size` is True"),
    ("awq", {"group_size": 10**30}, None, "BU124", "31 digits"),
    ("gptq", {"bits": 8}, None, "BU137", "`bits` = 4"),
    ("gptq 3", {"bits": 4}, None, "BU137", "`bits` = 3"),
    ("gptq", {"bits": 5}, None, "BU122", "`bits` = 5"),
    ("gptq", {"bits": None}, None, "BU121", "`bits` is null"),
    ("gptq", {"quant_method": "awq"}, None, "BU137", "`quant_method` = 'gptq'"),
    ("awq", {"quant_method": "gptq"}, None, "BU137", "`quant_method` = 'awq'"),
    ("awq", {"version": "gemv"}, None, "BU122", "`version` = 'gemv'"),
    ("gptq", {"checkpoint_format": "marlin"}, None, "BU122", "'marlin'"),
    ("nf4", {"load_in_4bit": False, "load_in_8bit": True}, None, "BU137", "`load_in_4bit` = True"),
    ("int8", {"load_in_4bit": True, "load_in_8bit": False}, None, "BU137", "`load_in_8bit` = True"),
    ("int8", {"load_in_4bit": True}, None, "BU137", "`load_in_4bit` = False, `load_in_8bit` = True"),
    ("nf4", {"load_in_8bit": True}, None, "BU122", "both `load_in_4bit` and `load_in_8bit`"),
    ("nf4", {"bnb_4bit_quant_type": "fp4"}, None, "BU137", "`bnb_4bit_quant_type` = 'nf4'"),
    ("gptq", {"quant_method": "fp8", "weight_block_size": [32, 32]}, None, "BU137", "GPTQ"),
    ("gptq", {}, without("qzeros"), "BU137", "without `qzeros`"),
    ("gptq", {}, without("1.mlp.up_proj.scales"), "BU101", "`model.layers.1.mlp.up_proj.scales`"),
    (BY_ACTIVATIONS, {}, without("g_idx"), "BU137", "without `g_idx`"),
    ("nf4", {}, without("weight.absmax"), "BU137", "without `weight.absmax`"),
    ("nf4", {}, without("__nf4"), "BU137", "without `weight.quant_state.bitsandbytes__nf4`"),
    ("int8", {}, without("SCB"), "BU137", "without `SCB`"),
    ("awq", {}, edited("qweight", np.transpose), "BU137", "transposed"),
    ("gptq", {"modules_to_not_convert": ["model.layers.0.mlp"]}, None, "BU137", "correct the list"),
    ("gptq", {"modules_in_block_to_quantize": [["self_attn.o_proj"], ["mlp.up_proj"]]}, None, "BU137", "k_proj.weight"),
    ("gptq", {"dynamic": {"-:model\\.layers\\.0\\.mlp": {}}}, None, "BU137", "`dynamic` = {}"),
    ("gptq", {"dynamic": {"+:.*\\.mlp\\.": {"bits": 8}}}, None, "BU137", "`dynamic` = {}"),
    ("gptq", {"dynamic": {"(?<=a)b": {"bits": 8}}}, None, "BU122", "(?<=a)b"),
    ("auto-round", {"packing_format": "auto_round:gptq"}, None, "BU122", "'auto_round:gptq'"),
]


@pytest.mark.parametrize(("name", "words", "change", "code", "said"), HEADERS, ids=range(len(HEADERS)))
def test_found_by_headers(published, name: str, words: Any, change: Change | None, code: str, said: str) -> None:
    findings = check(opened(published(name), words, change)).findings
    assert [finding.code for finding in findings] == [code], findings
    assert said in f"{findings[0].message} {findings[0].help}"


def _with_biases(tensors: Tensors, value: float) -> None:
    for name in [name for name in tensors if name.endswith("qweight")]:
        tensors[name.replace("qweight", "bias")] = np.zeros(tensors[name].shape[1], np.float16)
    tensors["model.layers.1.mlp.up_proj.bias"][3] = value


def _with_offset(state: np.ndarray, offset: object) -> np.ndarray:
    words = json.loads(state.tobytes()) | {"nested_offset": offset}
    return np.frombuffer(json.dumps(words).encode(), np.uint8)


VALUES: list[tuple[str, Mapping[str, Any], Change, str]] = [
    ("gptq", {}, lambda tensors: _with_biases(tensors, 0.5), "cannot drop `model.layers.1.mlp.up_proj.bias`"),
    (BY_ACTIVATIONS, {"desc_act": False}, lambda _: None, "`desc_act` is false"),
    ("gptq", {}, edited("0.mlp.up_proj.g_idx", lambda index: index[::-1]), "`desc_act` is false"),
    (BY_ACTIVATIONS, {}, edited("g_idx", lambda index: index + 1), "there are 2 groups"),
    (BY_ACTIVATIONS, {}, edited("0.mlp.up_proj.g_idx", lambda index: index - 1), "values from -1 to 0"),
    (
        "nf4",
        {},
        edited("__nf4", lambda state: np.frombuffer(state.tobytes().replace(b"64,", b"32,", 1), np.uint8)),
        "blocksize 32",
    ),
    ("nf4 nested", {}, edited("__nf4", lambda state: state[:-1]), "an object"),
    ("nf4 nested", {}, edited("__nf4", lambda state: _with_offset(state, True)), "nested_offset True"),
    ("nf4 nested", {}, edited("__nf4", lambda state: _with_offset(state, "0.5")), "nested_offset '0.5'"),
    ("nf4", {}, edited("quant_map", np.flip), "it is not the table of nf4"),
    ("int8", {}, edited("weight_format", np.ones_like), "not row by row"),
]


@pytest.mark.parametrize(("name", "words", "change", "said"), VALUES, ids=range(len(VALUES)))
def test_found_by_values(published, name: str, words: Any, change: Change, said: str) -> None:
    """`check --values` says what headers cannot show, and nothing is materialised."""
    job = opened(published(name), words, change)
    assert not check(job).findings
    found = value_findings(job)
    assert {finding.code for finding in found} == {"BU115"}, found
    assert any(said in finding.message for finding in found), found
    with pytest.raises(BringupError) as caught:
        materialise(job.plan, job.checkpoint)
    assert caught.value.findings[0].code == "BU115"


def test_biases_of_zeros_are_left_out(published) -> None:
    job = opened(published("gptq"), {}, lambda tensors: _with_biases(tensors, 0))
    report = check(job)
    assert not report.findings
    assert not value_findings(job)
    biases = [why for name, drop in job.plan.dropped.items() if name.endswith("bias") for why in [drop.why]]
    assert len(biases) == 14
    assert "AutoGPTQ" in biases[0]


def test_modules_of_their_own(published) -> None:
    """`dynamic` with other bits for some modules, and a module that is left as it is."""
    four, config = published("gptq")
    eight, _ = published("gptq 8 v2 of rows")
    three, _ = published("gptq 3 v2")
    others = (".mlp.up_proj", "0.self_attn.k_proj")
    tensors = {name: array for name, array in four.items() if not any(part in name for part in others)}
    tensors |= {name: array for name, array in eight.items() if "0.mlp.up_proj" in name}
    tensors |= {name: array for name, array in three.items() if "1.mlp.up_proj" in name}
    tensors["model.layers.0.self_attn.k_proj.weight"] = np.ones((32, 64), np.float32)
    dynamic = {
        r"-:model\.layers\.0\.self_attn\.k_proj$": {},
        r"+:.*\.0\.mlp\.up": {"bits": 8, "group_size": -1},
        r".*\.(?:1|2)\.mlp\.up_proj": {"bits": 3, "sym": False},
    }
    job = opened((tensors, config), {"dynamic": dynamic})
    assert not check(job).findings
    arrays = materialise(job.plan, job.checkpoint, only=["model.layers.0.self_attn.k_proj.weight"])
    assert (arrays["model.layers.0.self_attn.k_proj.weight"] == 1).all()
