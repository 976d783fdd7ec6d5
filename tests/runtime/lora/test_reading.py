"""LoRAs for a bundle: from peft's files, and from TensorRT-LLM's two tensors, which have the same products."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters.lora.files import open_lora
from bringup.compile.job import Job, open_job
from bringup.compile.lora.convert import request_tensors
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.lora.reading import read_lora, read_request
from bringup.compile.runtime.request import Request
from bringup.diagnostics import BringupError
from tests.quantised import formats, int4_formats
from tests.runtime.lora.bases import LORAS


def manifest_of(job: Job) -> dict[str, Any]:
    """What a bundle of a job says of its model."""
    return {
        "model": job.family.name, "model_argument": None, "config": job.config, "dtype": "float32", "graph_options": {},
        "provenance": {"source": "gone"},
    }  # fmt: skip


REQUESTS = [(base, lora) for base in ("llama", "gpt2") for lora in LORAS[base]]


@pytest.mark.parametrize(("base", "lora"), [*REQUESTS, ("mixtral", "experts"), ("mixtral", "one by one")])
def test_the_tensors_of_a_request_are_those_of_the_files(base, lora, bases):
    written = bases(base)
    job = open_job(None, written.folder)
    weights, config, _ = request_tensors(job, open_lora(written.loras[lora]), "float32")
    of_tensors, read = read_request(manifest_of(job), weights, config), read_lora(manifest_of(job), written.loras[lora])
    assert of_tensors.factors.keys() == read.factors.keys()
    for name, (a, b) in of_tensors.factors.items():
        wanted = read.factors[name]
        assert np.abs(b.swapaxes(-1, -2) @ a - wanted.b.swapaxes(-1, -2) @ wanted.a).max() < 1e-5, name


def test_factors_are_those_of_the_files_times_the_scale(llama):
    """alpha / r = 2: by hand, from the tensors that peft wrote."""
    read = read_lora(manifest_of(open_job(None, llama.folder)), llama.loras["plain"])
    tensors = load_file(llama.loras["plain"] / "adapter_model.safetensors")
    for name, (a, b) in read.factors.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        np.testing.assert_array_equal(a, tensors[f"{module}.lora_A.weight"])
        np.testing.assert_array_equal(b, 2 * tensors[f"{module}.lora_B.weight"].T)
    assert len(read.factors) == 4


@pytest.mark.parametrize("name", ["nf4", "nf4 nested", "fp4 of 128", "modelopt-nvfp4-config", "awq"])
def test_a_quantised_model_has_the_loras_of_the_float_model(name, llama, tmp_path):
    """A bundle has no checkpoint to read: the number of bytes of bitsandbytes' JSON is not known, for example."""
    job = open_job(None, llama.folder)
    words = {**formats.FORMATS, **int4_formats.FORMATS}[name].words
    assert words
    quantised = manifest_of(job) | {"config": {**job.config, "quantization_config": words}}
    for lora in llama.loras.values():
        wanted, found = (read_lora(manifest, lora).factors for manifest in (manifest_of(job), quantised))
        assert found.keys() == wanted.keys()
        for parameter, factors in found.items():
            for ours, theirs in zip(factors, wanted[parameter], strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_a_batch_reads_the_tensors_of_a_request(llama, bundle):
    """As docs/lora.md shows it: LoraWeights and LoraConfig, in the order of its two arguments."""
    files = llama.loras["stable"]
    weights, config, _ = request_tensors(open_job(None, llama.folder), open_lora(files), "float32")
    answers = []
    with load_batch(bundle) as batch:
        for lora in (batch.read_lora_request(weights, config), batch.read_lora(files), None):
            number = len(answers)
            batch.add(Request([3, 5, 7], max_new_tokens=6, lora=None if lora is None else number, lora_weights=lora))
            tokens = []
            while batch:
                tokens += [event.token for event in batch.step()]
            answers.append(tokens)
    of_tensors, of_files, without = answers
    assert of_tensors == of_files != without


def test_tensors_of_another_model_are_refused(llama, gpt2):
    job = open_job(None, gpt2.folder)
    weights, config, _ = request_tensors(job, open_lora(gpt2.loras["all"]), "float32")
    with pytest.raises(BringupError, match="BU173"):
        read_request(manifest_of(open_job(None, llama.folder)), weights, config)


def test_a_copy_of_another_head_is_refused(llama, bundle, tmp_path):
    """What `lora check` compares with the base's checkpoint, with the bundle's weights: the checkpoint may be gone."""
    folder = shutil.copytree(llama.loras["plain"], tmp_path / "lora")
    tensors = load_file(folder / "adapter_model.safetensors")
    head = load_file(llama.folder / "model.safetensors")["lm_head.weight"]
    batch = load_batch(bundle)
    for copy, refused in ((head, False), (head + 1e-3, True)):
        save_file({**tensors, "base_model.model.lm_head.base_layer.weight": copy}, folder / "adapter_model.safetensors")
        if refused:
            with pytest.raises(BringupError, match=r"BU168.*differs from `lm_head.weight`"):
                batch.read_lora(folder)
        else:
            assert len(batch.read_lora(folder).factors) == 4


@pytest.mark.parametrize(("code", "value"), [("BU169", 0.0), ("BU172", np.nan)])
def test_one_that_changes_nothing_is_refused(llama, tmp_path, code, value):
    """As peft writes it before the first step of training; and one with NaN."""
    folder = shutil.copytree(llama.loras["plain"], tmp_path / "lora")
    tensors = load_file(folder / "adapter_model.safetensors")
    changed = {name: np.full_like(array, value) if "lora_B" in name else array for name, array in tensors.items()}
    save_file(changed, folder / "adapter_model.safetensors")
    with pytest.raises(BringupError, match=code):
        read_lora(manifest_of(open_job(None, llama.folder)), folder)
