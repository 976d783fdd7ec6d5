"""docs/kernels.md is what kernels take; for NVIDIA none spills, and all fit shared memory."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import version

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config

from benchmarks.kernel_resources import measured
from benchmarks.kernels import BEGIN, CONTEXT, END, PAGE, TOKENS, configurations, table
from benchmarks.layer_kernels import MODELS, kernels_of
from benchmarks.spills import Case, measure, page
from bringup.compile.cache.store import default_store
from bringup.compile.job import open_job
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.resources import resources
from bringup.compile.kernels.select.sampling import sampling_calls
from bringup.compile.pipeline import build
from tests.models import parity

# One layer of a known model's shape: 96 channels, in two parts, with a rotation of 48 pairs; 256 channels with norms.
LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "head_dim": 64}
PHI3 = {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "max_position_embeddings": 4096}
GEMMA3 = {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "head_dim": 256}
SHAPES = {
    "llama": LlamaConfig(**LLAMA, num_key_value_heads=8, num_hidden_layers=1, vocab_size=512),
    "phi3": Phi3Config(**PHI3, num_key_value_heads=32, num_hidden_layers=1, vocab_size=512, pad_token_id=0),
    "gemma3": Gemma3TextConfig(**GEMMA3, num_key_value_heads=1, num_hidden_layers=1, vocab_size=512),
}
ROW = re.compile(r"^\| `([\w.]+)`: ([^|]+) \| (\w+) \| (\d+) \| (\d+) \| ([\d,]+) \| (\d+) of (\d+) \|$", re.MULTILINE)
LAYER_ROW = re.compile(
    r"^\| `([\w.]+)`: ([^|]+) \| (\w+) \| (\d+) \| \d+ \| (\d+) \| ([\d,]+) \| (\d+) of \d+ \|$", re.MULTILINE
)


def tables() -> dict[str, str]:
    text = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    parts = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_page_has_every_configuration_and_none_spills(capability):
    rows = ROW.findall(tables()[capability])
    expected = [(kernel.stem, what, dtype) for what, dtype, kernel in configurations(capability)]
    assert [row[:3] for row in rows] == expected
    for stem, what, dtype, _, stack, shared, warps, _ in rows:
        where = f"{stem}, {what}, {dtype}"
        assert int(shared.replace(",", "")) <= ARCHITECTURES[capability].shared, where
        assert int(warps) > 0, where
        assert int(stack) == 0 or not is_nvidia(capability), where


@pytest.mark.parametrize("capability", [name for name in ARCHITECTURES if is_nvidia(name)])
def test_the_page_has_a_layer_of_every_model_and_none_spills(capability):
    rows = LAYER_ROW.findall(tables()[capability])
    assert list(dict.fromkeys(row[1:3] for row in rows)) == [(model.name, model.dtype) for model in MODELS]
    for stem, what, _, number, stack, shared, warps in rows:
        where = f"{stem}, {what}"
        assert int(shared.replace(",", "")) <= ARCHITECTURES[capability].shared, where
        assert int(number) > 0, where
        assert int(warps) > 0, where
        assert int(stack) == 0, where


@pytest.mark.parametrize("name", ["Llama 3.2 1B", "gpt-oss, 8 experts"])
def test_a_layer_has_the_kernels_that_the_page_counts(name):
    (model,) = (each for each in MODELS if each.name == name)
    found = Counter(kernel.stem for kernel in kernels_of(model, "sm_90", CONTEXT, TOKENS["prefill"]))
    listed = {row[0]: int(row[3]) for row in LAYER_ROW.findall(tables()["sm_90"]) if row[1] == name}
    assert found == listed


@pytest.mark.slow
def test_the_page_is_what_kernels_take():
    """On one architecture, which takes minutes; `benchmarks/kernels.py` writes all."""
    assert table("sm_90").partition("\n")[2].strip() == tables()["sm_90"].strip()


def test_the_table_of_spills_states_what_was_compiled_and_its_stack():
    (kernel,) = (call.kernel for call in sampling_calls("float32", 1, 300, 32)[:1])
    cases = [Case("one", "float32", on, kernel, f"{on} {number}") for on in ("sm_80", "sm_90") for number in (1, 2)]
    stacks = {"3.6.0": {"sm_80 1": 0, "sm_80 2": 0, "sm_90 1": 0}, "3.9.0": {"sm_80 1": 0, "sm_80 2": 0, "sm_90 1": 16}}
    text = page(cases, stacks, "2026-11-26")
    assert "| one: sampling | float32 | 2 | 0 | 0 | 1 of 2 (16 B), 1 of 2 | 0 | 0 |" in text
    assert "| `largest`, float32 | one | sm_90 | 3.9.0 | 16 |" in text
    assert "4 different kernels, of which were compiled: 3 with 3.9.0, 3 with 3.6.0." in text
    assert "No kernel that was compiled has a stack." not in text
    assert "No kernel that was compiled has a stack." in page(cases, {"3.9.0": {}}, "2026-11-26")


def test_spills_are_measured_once_for_each_version_of_triton():
    kernels = [call.kernel for vocabulary in (300, 600) for call in sampling_calls("float32", 1, vocabulary, 32)[:1]]
    cases = [Case("one", "float32", "sm_90", kernel, str(number)) for number, kernel in enumerate(kernels)]
    stacks = {version("triton"): {"0": 7}}
    assert len(list(measure([*cases, *cases], stacks, 600))) == 1
    assert stacks == {version("triton"): {"0": 7, "1": 0}}
    assert list(measure(cases, stacks, 600)) == []


def stack_of(kernels: dict[str, Kernel]) -> dict[str, int]:
    """Bytes of stack of kernels for sm_120, compiled now."""
    compiled = compile_kernels(kernels.values(), "sm_120", None)
    return {name: resources(compiled[kernel]).stack for name, kernel in kernels.items()}


@pytest.mark.slow
def test_tiles_for_sm_120_do_not_spill():
    """The configurations with tiles of their own there: with those of sm_100 one of them spills."""
    own, others = ({f"{dtype} {what} {kernel.stem}": kernel for what, dtype, kernel in configurations(capability)}
                   for capability in ("sm_120", "sm_100"))  # fmt: skip
    changed = [name for name, kernel in own.items() if kernel != others[name]]
    assert set(stack_of({name: own[name] for name in changed}).values()) == {0}
    assert sum(stack > 0 for stack in stack_of({name: others[name] for name in changed}).values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_sampling_does_not_spill(capability):
    """Of vocabularies in one block and in several, divisible by 16 or not."""
    sizes = [(dtype, vocabulary) for dtype in ("float32", "bfloat16") for vocabulary in (300, 1300, 50_257, 128_256)]
    kernels = {size: call.kernel for size in sizes for call in sampling_calls(size[0], 1, size[1], 32)[1:]}
    compiled = compile_kernels(kernels.values(), capability, default_store())
    assert {size: resources(compiled[kernel]).stack for size, kernel in kernels.items()} == dict.fromkeys(sizes, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "capability"), [("llama", "sm_80"), ("phi3", "sm_90"), ("gemma3", "sm_90")])
def test_no_kernel_of_a_model_spills(name, capability, tmp_path):
    """Others for sm_90 are on the page."""
    folder = parity.save_checkpoint(SHAPES[name], tmp_path / "checkpoint", "bfloat16")
    job = open_job(checkpoint=str(folder))
    bundle = build(job, out=tmp_path / "b", target=f"cuda:{capability}", max_seq_len=2048, buckets=(32, 512, 2048))
    found = list(measured(bundle))
    assert {stem for stem, _ in found} >= {"linear", "linear_tile", "attention_decode", "attention_prefill"}
    assert {stem: used.stack for stem, used in found if used.stack} == {}
