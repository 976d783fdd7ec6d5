"""Which settings a module has: groups of classes, lists whose meaning converters differ about, words and shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Diagnostic
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selections")


def opened(name: str, folder: Path) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """The tensors of a checkpoint in a format, those of its exact values, and its config."""
    family = "llama of words" if name in INT4 else "llama"
    jobs = [open_job(checkpoint=str(place)) for place in write(family, {**FORMATS, **INT4}[name], folder)]
    stored, exact = ({key: job.checkpoint.read(info) for key, info in job.checkpoint.headers.items()} for job in jobs)
    return stored, exact, json.loads(json.dumps(jobs[0].config))


def the_same(tensors: Tensors, exact: Tensors, config: Mapping[str, Any]) -> Job:
    """The job of the tensors, of which nothing is said, and which are the exact ones bit for bit."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    job, other = (
        open_job(checkpoint=dict_checkpoint(tensors, config)),
        open_job(checkpoint=dict_checkpoint(exact, plain)),
    )
    assert not check(job).findings
    arrays, wanted = materialise(job.plan, job.checkpoint), materialise(other.plan, other.checkpoint)
    assert arrays.keys() == wanted.keys()
    for parameter, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[parameter], parameter)
    return job


def one(tensors: Tensors, config: Mapping[str, Any]) -> Diagnostic:
    (finding,) = check(open_job(checkpoint=dict_checkpoint(tensors, config))).findings
    return finding


@pytest.mark.parametrize("turn", [1, -1], ids=["embedding first", "linear first"])
def test_groups_of_two_classes(turn: int, folder: Path) -> None:
    """llm-compressor's `targets` of classes: the embedding in int8, matrices in int4, whichever group is first."""
    tensors, exact, config = opened("ct-int4", folder)
    parts, table = FORMATS["ct-int8"].write(exact["model.embed_tokens.weight"])
    del tensors["model.embed_tokens.weight"]
    tensors |= {f"model.embed_tokens.{part}": array for part, array in parts.items()}
    words = config["quantization_config"]
    of_linear = words["config_groups"]["group_0"] | {"format": "pack-quantized"}
    of_table = FORMATS["ct-int8"].words["config_groups"]["group_0"] | {
        "targets": ["Embedding"], "format": "int-quantized",
    }  # fmt: skip
    groups = {f"group_{k}": group for k, group in enumerate([of_table, of_linear][::turn])}
    words |= {"format": "mixed-precision", "config_groups": groups}
    the_same(tensors, exact | {"model.embed_tokens.weight": table}, config)


@pytest.mark.parametrize(
    ("entry", "inside"),
    [("self_attn", ".self_attn."), ("model.layers.0.", ".layers.0."), ("gate", ".gate_proj."), ("mlp.up", ".mlp.up_")],
)
@pytest.mark.parametrize(("name", "key"), [("awq", "modules_to_not_convert"), ("nf4 nested", "llm_int8_skip_modules")])
def test_text_that_occurs_in_names(name: str, key: str, entry: str, inside: str, folder: Path) -> None:
    """AutoAWQ leaves out modules in whose names an entry occurs; quantised ones are read all the same."""
    tensors, exact, config = opened(name, folder)
    config["quantization_config"][key] = [entry]
    some = {key: array for key, array in tensors.items() if inside not in key}
    some |= {key: array for key, array in exact.items() if inside in key}
    assert len(some) < len(tensors)
    the_same(some, exact, config)
    if entry == "gate":
        the_same(tensors, exact, config)


def test_text_that_does_not_occur_in_names(folder: Path) -> None:
    tensors, exact, config = opened("awq", folder)
    config["quantization_config"]["modules_to_not_convert"] = ["gate"]
    some = {key: array for key, array in tensors.items() if "o_proj" not in key}
    finding = one(some | {key: array for key, array in exact.items() if "o_proj" in key}, config)
    assert (finding.code, finding.parameter) == ("BU137", "model.layers.{0..1}.self_attn.o_proj.weight")


@pytest.mark.parametrize("name", ["gptq", "awq", "auto-round"])
def test_configs_without_a_list(name: str, folder: Path) -> None:
    """GPT-QModel leaves out modules that each of its models names (`shared_expert_gate:!`), and no config."""
    tensors, exact, config = opened(name, folder)
    config["quantization_config"].pop("extra_config", None)
    some = {key: array for key, array in tensors.items() if "o_proj" not in key}
    some |= {key: array for key, array in exact.items() if "o_proj" in key}
    the_same(some, exact, config)


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_a_config_of_another_checkpoint(name: str, folder: Path) -> None:
    """If nothing is quantised, the config is wrong; and so it is if it lists the modules."""
    tensors, exact, config = opened(name, folder)
    assert one(exact, config).code == "BU137"
    key = "modules_to_not_convert" if name == "awq" else "modules_in_block_to_quantize"
    modules = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
               "mlp.up_proj", "mlp.down_proj"]  # fmt: skip
    config["quantization_config"][key] = ["lm_head"] if name == "awq" else modules
    some = {key: array for key, array in tensors.items() if "o_proj" not in key}
    some |= {key: array for key, array in exact.items() if "o_proj" in key}
    assert one(some, config).parameter == "model.layers.{0..1}.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("name", "end", "dtype"),
    [
        ("gptq", "qweight", np.int64), ("gptq", "qzeros", np.int64), ("ct-int4", "weight_packed", np.int64),
        ("awq", "qweight", np.int64), ("awq", "qzeros", np.int16), ("modelopt-nvfp4", "proj.weight", np.int16),
        ("quark-mxfp4", "proj.weight", np.uint32),
    ],
)  # fmt: skip
def test_words_of_another_width(name: str, end: str, dtype: type[np.integer[Any]], folder: Path) -> None:
    """Of the same count, but twice as wide or half: the numbers would be others."""
    tensors, _, config = opened(name, folder)
    wide: Tensors = {key: array.astype(dtype) for key, array in tensors.items() if key.endswith(end)}
    finding = one(tensors | wide, config)
    assert finding.code == "BU108"
    assert f"is stored as {np.dtype(dtype)}" in finding.message


@pytest.mark.parametrize("shape", [(-1,), (1, -1)], ids=str)
def test_dimensions_of_one(shape: tuple[int, ...], folder: Path) -> None:
    """bitsandbytes stores codes as [n, 1], which are the same in one row or without that dimension."""
    tensors, exact, config = opened("nf4 nested", folder)
    codes = {key: array.reshape(shape) for key, array in tensors.items() if key.endswith("proj.weight")}
    the_same(tensors | codes, exact, config)


def test_words_without_a_sign(folder: Path) -> None:
    edit: Callable[[np.ndarray], np.ndarray] = lambda words: words.view(np.uint32)  # noqa: E731
    tensors, exact, config = opened("ct-int4", folder)
    words = {key: edit(array) for key, array in tensors.items() if key.endswith("weight_packed")}
    the_same(tensors | words, exact, config)


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("ct-int4", "format", {"format": "marlin-24"}),
        ("modelopt-nvfp4-config", "quant_algo", {"quant_algo": "NVFP4_AWQ", "group_size": 16}),
        ("fp8-inv", "weight_block_size", {"weight_block_size": [128]}),
    ],
)
def test_a_wrong_word_is_the_only_finding(name: str, key: str, words: dict[str, Any], folder: Path) -> None:
    """What its stand-in makes of the tensors is none; another mistake is."""
    tensors, _, config = opened(name, folder)
    config["quantization_config"] |= words
    finding = one(tensors, config)
    assert (finding.parameter, finding.code) == (key, "BU121" if name == "fp8-inv" else "BU122")
    del tensors["model.norm.weight"]
    codes = [found.code for found in check(open_job(checkpoint=dict_checkpoint(tensors, config))).findings]
    assert codes == [finding.code, "BU101"]


def test_scales_under_both_names(folder: Path) -> None:
    """One of the two is read, and the others are one finding, whatever their shapes."""
    tensors, _, config = opened("ct-fp8-blocks", folder)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 32]}
    tensors |= {f"{key}_inv": array for key, array in tensors.items() if key.endswith("weight_scale")}
    finding = one(tensors, config)
    assert (finding.code, len(finding.sources)) == ("BU105", 14)


@pytest.mark.parametrize(("name", "end"), [("gptq", "o_proj"), ("ct-int4", "down_proj")])
def test_one_module_of_other_bits(name: str, end: str, folder: Path) -> None:
    """The sizes of the model are as the config states, which its scales show."""
    tensors, exact, config = opened(name, folder)
    other = {"gptq": INT4["gptq 2"], "ct-int4": FORMATS["ct-int8-packed"]}[name]
    wide: Callable[[np.ndarray], Tensors] = lambda matrix: other.write(matrix)[0]  # noqa: E731
    for key, array in exact.items():
        if key.endswith(f"{end}.weight"):
            parts = wide(array)
            some = {part: parts[part] for part in ("qweight", "qzeros", "weight_packed") if part in parts}
            tensors |= {key.replace("weight", part): value for part, value in some.items()}
    finding = one(tensors, config)
    assert finding.code == "BU102"
    assert f"have codes of {2 if name == 'gptq' else 8} bits, and the config states 4" in finding.message
