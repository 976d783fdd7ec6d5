"""What hsacos report of their kernels is what a launch passes: of two models, each for one of AMD's architectures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bringup.compile.gpu.code_checks import arguments_of, code_problems
from bringup.compile.gpu.kernel_plan import FILE, ROCM_FILES, KernelPlan, plan_from_json
from bringup.compile.kernels.architectures import ARCHITECTURES
from bringup.compile.kernels.code_object import CodeArgument, CodeKernel, kernel_of
from bringup.compile.kernels.message_pack import decoded
from bringup.compile.pipeline import build
from tests.schedule.models import CONTEXT, PREFILL, job_of

METADATA = re.compile(r"\.amdgpu_metadata\n(.*)\n\s*\.end_amdgpu_metadata", re.DOTALL)
WAVEFRONT = 64  # lanes, of gfx9: https://llvm.org/docs/AMDGPUUsage.html#processors


BUNDLES = [("gpt2", "gfx942"), pytest.param(("llama", "gfx90a"), marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BUNDLES, ids="-".join)
def bundle(request, tmp_path_factory) -> Path:
    name, architecture = request.param
    folder = tmp_path_factory.mktemp(f"{name}-{architecture}")
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "target": f"rocm:{architecture}"}
    return build(job_of(name, folder), out=folder / "b", **settings)


def plan_of(bundle: Path) -> KernelPlan:
    return plan_from_json(json.loads((bundle / FILE).read_text("utf-8")))


def codes(bundle: Path) -> dict[str, CodeKernel]:
    """By digest."""
    return {file.stem: kernel_of(file.read_bytes()) for file in (bundle / ROCM_FILES.binaries).iterdir()}


def test_every_kernel_takes_what_a_launch_passes(bundle) -> None:
    plan, found = plan_of(bundle), codes(bundle)
    assert {each.name for each in plan.kernels.values()} >= {"linear", "linear_tile", "attention_decode", "draw"}
    limit = ARCHITECTURES[plan.capability].shared
    for planned in plan.kernels.values():
        code = found.pop(planned.digest)
        assert list(code_problems(planned, code, plan.capability)) == []
        assert len(code.arguments) == len(planned.kernel.types) + 2  # and both kinds of scratch memory
        ends = [each.offset + each.size for each in code.arguments]
        assert all(end <= after.offset for end, after in zip(ends, code.arguments[1:], strict=False))
        assert ends[-1] <= code.argument_bytes
        assert (code.wavefront, code.stack) == (WAVEFRONT, 0)
        assert code.shared + planned.shared <= limit
    assert found == {}


def test_the_note_is_the_metadata_of_the_assembly(bundle) -> None:
    """The compiler writes it twice: as MessagePack, and as YAML in the assembly."""
    for file in (bundle / ROCM_FILES.binaries).iterdir():
        text = METADATA.search(ROCM_FILES.text(bundle, file.stem).read_text("utf-8"))
        assert text is not None
        (kernel,) = yaml.safe_load(text[1])["amdhsa.kernels"]
        code = kernel_of(file.read_bytes())
        listed = [(each[".offset"], each[".size"], each[".value_kind"]) for each in kernel[".args"]]
        own = [each for each in listed if not each[2].startswith("hidden_")]
        assert [(each.offset, each.size, each.kind) for each in code.arguments] == own
        assert (code.name, code.symbol) == (kernel[".name"], kernel[".symbol"])
        assert code.argument_bytes == kernel[".kernarg_segment_size"]
        assert (code.wavefront, code.threads) == (kernel[".wavefront_size"], kernel[".max_flat_workgroup_size"])
        assert (code.shared, code.stack) == (kernel[".group_segment_fixed_size"], kernel[".private_segment_fixed_size"])
        assert code.registers == kernel[".vgpr_count"]
        assert code.spilled == kernel[".vgpr_spill_count"] + kernel[".sgpr_spill_count"]


def test_arguments_are_aligned_to_their_size() -> None:
    found = arguments_of(("*bf16", "i32", "i64", "fp32", "i1", "*i8"))
    places = [(0, 8), (8, 4), (16, 8), (24, 4), (28, 1), (32, 8)]
    assert [(each.offset, each.size) for each in found] == places
    assert [each.kind for each in found] == ["global_buffer", *["by_value"] * 4, "global_buffer"]


def test_another_kernel_is_found(bundle) -> None:
    plan = plan_of(bundle)
    planned = next(each for each in plan.kernels.values() if each.name == "linear")
    code = codes(bundle)[planned.digest]
    changes = (
        {"name": "linear_2"}, {"symbol": "linear"}, {"architecture": "gfx1100"}, {"features": ":xnack+"},
        {"wavefront": 32}, {"threads": 2 * code.threads}, {"arguments": code.arguments[:-1]},
        {"arguments": (CodeArgument(0, 4, "by_value"), *code.arguments[1:])},
    )  # fmt: skip
    for change in changes:
        assert len(list(code_problems(planned, replace(code, **change), plan.capability))) == 1, change


def test_what_is_no_hsaco(bundle) -> None:
    image = next((bundle / ROCM_FILES.binaries).iterdir()).read_bytes()
    kernel_of(image)
    begin = image.index(b"\xae" + b"amdhsa.kernels")
    wrong = {
        "its begin": b"MZ" + image[2:],
        "ABI version is 2": image[:8] + b"\2" + image[9:],
        "no metadata": image.replace(b"AMDGPU\0", b"NOBODY\0"),
        "begins no text": image[:begin] + b"\xc1" + image[begin + 1 :],
        "not an hsaco of one kernel": image.replace(b".wavefront_size", b".wavefront_sizf"),
        "the target of the hsaco": image.replace(b"-unknown-gfx9", b"-unknown-sm_9"),
    }
    for message, content in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel_of(content)
    for size in range(0, len(image), 97):
        if size < image.index(b".wavefront_size"):
            with pytest.raises(ValueError, match=r"hsaco|ends within"):
                kernel_of(image[:size])


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\x82\xa1a\x01\xa1b\x92\xff\xc3", {"a": 1, "b": [-1, True]}),
        (b"\xde\x00\x01\xd9\x02xy\xdc\x00\x01\xc0", {"xy": [None]}),
        (b"\xcd\x01\x00", 256),
        (b"\xd1\xff\x00", -256),
        (b"\xcf" + b"\xff" * 8, 2**64 - 1),
        (b"\xda\x00\x03\xe2\x82\xac", "\u20ac"),
    ],
)
def test_message_pack(content, value) -> None:
    """Bytes by hand, from the tables of the specification."""
    assert decoded(content) == value
    for wrong in (content[:-1], content + b"\0", b"\x91" * 20 + content):
        with pytest.raises(ValueError, match=r"ends within|follow|in each other"):
            decoded(wrong)
