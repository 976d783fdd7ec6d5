"""Commands on a checkpoint that is quantised already: one finding, which says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from bringup.adapters.apply.reverse import irreversible
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.cli.main import cli
from bringup.compile.convert.export import export_bundle
from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.parity.reference import Reference
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS as PUBLISHED
from tests.quantised.int4_formats import FORMATS

TOKENS = [1, 2, 3]


@pytest.fixture(scope="module")
def gptq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("llama of words", FORMATS["gptq"], tmp_path_factory.mktemp("gptq"))[0]


def refused(*words: object) -> list[str]:
    """The errors of a command, without their places."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 1, result.output
    return [line for line in result.stderr.splitlines() if line.lstrip().startswith(("error[", "= help"))]


@pytest.mark.parametrize("command", [["compile", "--dry-run"], ["export"]], ids=lambda words: words[0])
def test_quantising_once_more(command: list[str], gptq: Path, tmp_path: Path) -> None:
    name, *options = command
    out = ["-o", tmp_path / "out"]
    error, help = refused(name, "--checkpoint", gptq, "--quantize", "int8", *options, *out)
    assert error.startswith("error[BU414]")
    assert error.endswith("cannot be quantised by int8: the checkpoint has it quantised")
    assert help.endswith("leave --quantize out, or give the checkpoint in floats")


def lora(folder: Path) -> Path:
    """An adapter of all q projections."""
    factors: dict[str, np.ndarray] = {}
    for layer in range(2):
        stem = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        factors |= {f"{stem}A.weight": np.ones((4, 64), np.float32), f"{stem}B.weight": np.ones((64, 4), np.float32)}
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    words = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(words), "utf-8")
    return folder


@pytest.mark.parametrize("command", ["export", "lora merge"])
def test_floats_are_not_written_as_codes(command: str, gptq: Path, tmp_path: Path) -> None:
    """The values of a checkpoint, or those with a LoRA added, have no codes."""
    more = [] if command == "export" else [lora(tmp_path / "lora")]
    error, help = refused(*command.split(), "--checkpoint", gptq, *more, "-o", tmp_path / "out")
    assert error.startswith("error[BU117]")
    assert error.endswith("cannot be converted back to tensors of the checkpoint: dequantise GPTQ")
    assert "its weights are quantised: export a bundle" in help


@pytest.mark.parametrize(
    ("name", "said"), [("gptq", "--weights packed"), ("int8", "not written"), ("nf4", "not written")]
)
def test_forms_that_are_read_and_not_written(name: str, said: str, tmp_path: Path) -> None:
    """The scales of bitsandbytes are computed from what is stored: packed weights cannot be exported either."""
    job = open_job(checkpoint=write("llama of words", FORMATS[name], tmp_path)[0])
    (finding,) = irreversible(job.plan)
    assert said in finding.help
    assert bool(irreversible(pack_job(job).job.plan)) == (said == "not written")


@pytest.mark.slow
def test_a_bundle_of_bitsandbytes_without_its_checkpoint(tmp_path: Path) -> None:
    folder, _ = write("llama of words", FORMATS["nf4"], tmp_path)
    bundle = build(open_job(checkpoint=folder), out=tmp_path / "b", target="torch", max_seq_len=32, buckets=(8,))
    folder.rename(tmp_path / "moved")
    with pytest.raises(BringupError, match=r"BU143.*without the checkpoint.*quant_state"):
        export_bundle(bundle, tmp_path / "out")
    with pytest.raises(BringupError, match=r"BU117.*scales"):
        export_bundle(bundle, tmp_path / "out", checkpoint=str(tmp_path / "moved"))


def test_a_reference_whose_package_is_not_installed(gptq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Loading a GPTQ quantized model requires optimum (`pip install optimum`)")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", missing)
    opened = open_checkpoint(str(gptq))
    with pytest.raises(BringupError, match=r"BU703.*`LlamaForCausalLM`: Loading a GPTQ quantized model requires"):
        Reference(opened, opened.config, "float32")
    plain = {key: value for key, value in opened.config.items() if key != "quantization_config"}
    with pytest.raises(ImportError):
        Reference(opened, plain, "float32")


@pytest.mark.slow
def test_a_reference_that_does_not_know_the_method(tmp_path: Path) -> None:
    error, _ = refused("verify", "--checkpoint", write("llama", PUBLISHED["modelopt-nvfp4"], tmp_path)[0])
    assert error.startswith("error[BU703]")
    assert error.endswith("it does not know the quantisation method `modelopt`")


@pytest.mark.slow
def test_a_reference_that_ignores_scales(tmp_path: Path) -> None:
    """transformers loads the codes without their scales, and warns: numbers that prove nothing."""
    error, help = refused("verify", "--checkpoint", write("llama", PUBLISHED["fp8-tensor"], tmp_path)[0])
    assert error.startswith("error[BU703]")
    ignored = "it ignores `model.layers.0.mlp.down_proj.weight_scale`, a part of a quantised weight (14 such tensors)"
    assert error.endswith(ignored)
    assert "--against FILE" in help


def test_a_reference_whose_code_stops(tmp_path: Path) -> None:
    """bitsandbytes' code for processors takes matrices of whole blocks of rows only, and asserts it."""
    quantised, exact = write("llama of words", FORMATS["nf4"], tmp_path)
    for folder, expected in ((quantised, BringupError), (exact, AssertionError)):
        opened = open_checkpoint(str(folder))
        reference = Reference(opened, opened.config, "float32")

        def stopped(*_: object, **__: object) -> None:
            raise AssertionError("N must be divisible by block_n")

        reference.model.forward = stopped
        with pytest.raises(expected, match="N must be divisible by block_n") as found:
            reference.logits(TOKENS)
        assert ("BU703" in str(found.value)) == (folder == quantised)


def test_inspect_lists_the_keys_that_a_scheme_reads(gptq: Path, tmp_path: Path) -> None:
    def inspected(folder: Path) -> dict[str, Any]:
        return json.loads(CliRunner().invoke(cli, ["inspect", str(folder), "--format", "json"]).stdout)

    found = inspected(gptq)
    assert "quantization_config" in found["config"]["known"]
    assert not found["config"]["unread"]
    of_file, _ = write("llama", PUBLISHED["modelopt-nvfp4"], tmp_path)
    found = inspected(of_file)
    assert found["quantization"]["quant_algo"] == "'NVFP4'"
    assert not found["config"]["unread"]
    config = json.loads((gptq / "config.json").read_text("utf-8"))
    config["quantization_config"] = {"quant_method": "hqq"}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "model.safetensors").write_bytes((gptq / "model.safetensors").read_bytes())
    assert "quantization_config" in inspected(tmp_path)["config"]["unread"]


def test_explain_states_the_dtype_that_is_computed(gptq: Path) -> None:
    """Of the tensors that a value is computed from, nothing: their bits are not read as floats."""
    words = ["explain", "model.layers.0.mlp.up_proj.weight", "--checkpoint", str(gptq)]
    output = CliRunner().invoke(cli, words).stdout
    lines = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("  dtype ")]
    assert lines == ["float32, as computed"]
