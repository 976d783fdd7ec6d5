"""Checkpoints written by transformers, and the errors of bringup's logits compared with transformers' own forward."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.pytorch_utils import Conv1D

from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session, load

transformers.utils.logging.disable_progress_bar()

PLAIN = {"attn_implementation": "eager", "experts_implementation": "eager"}  # transformers' own code, no fused kernel
IMAGES = ("vision_tower.", "multi_modal_projector.")  # modules that text does not use
PROMPT, STEPS = 512, 64
# Largest |difference| over largest |reference|. float32: sums in another order; bfloat16: rounding of its 8 bits.
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2}
EXEMPT = {"float32": 0.01, "bfloat16": 0.5}  # share of rows too close to call; random weights leave small margins
# Deviation of a random matrix's sums. At 1.4 attention is uneven and logits are of order 1; there, transformers' own
# bfloat16 is 5e-2 from its float32, so that checkpoints to be compared at 16 bits are calmer.
GAIN = {"float32": 1.4, "bfloat16": 0.5, "float16": 0.5}
# Root mean square of bfloat16 logits less float32 ones of the same weights: ours over transformers'.
NO_WORSE = 1.1


@dataclass(frozen=True)
class Distance:
    """Logits [R, V] against the reference's. Rows whose top-1 margin is under twice their difference are exempt."""

    worst: float
    rows: int
    wrong: int
    exempt: int

    def __str__(self) -> str:
        return f"{self.worst:.1e} of max |reference|, {self.rows} rows: {self.wrong} wrong, {self.exempt} exempt"


def distance(ours: np.ndarray, reference: np.ndarray) -> Distance:
    assert ours.shape == reference.shape
    ours, reference = of_drafted(ours, reference)
    assert np.isfinite(ours).all()
    gap = np.abs(ours - reference).max(-1)
    top_two = np.sort(reference)[:, -2:]
    exempt = top_two[:, 1] - top_two[:, 0] <= 2 * gap
    wrong = ~exempt & (ours.argmax(-1) != reference.argmax(-1))
    return Distance(float(gap.max() / np.abs(reference).max()), len(ours), int(wrong.sum()), int(exempt.sum()))


def of_drafted(ours: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both without the tokens that a draft never proposes: their logits are -infinity in every row of either."""
    never = np.isneginf(reference).all(0)
    assert np.isneginf(ours[:, never]).all()
    return ours[:, ~never], reference[:, ~never]


def assert_near(ours: np.ndarray, reference: np.ndarray, dtype: str) -> Distance:
    found = distance(ours, reference)
    print(found)
    assert found.worst <= TOLERANCE[dtype]
    assert found.wrong == 0
    assert found.exempt <= EXEMPT[dtype] * found.rows
    return found


def random_tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def _kind(config: transformers.PreTrainedConfig) -> Any:
    """transformers' class for a config: of text, or of text beside images."""
    of_text = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return transformers.AutoModelForCausalLM if of_text else transformers.AutoModelForImageTextToText


def save_checkpoint(config: transformers.PreTrainedConfig, folder: Path, dtype: str = "float32") -> Path:
    """A seeded random model as `save_pretrained` writes it; each of its tensors matters to the logits."""
    # a copy: `save_pretrained` sets the dtype of the config, which other tests save too
    model = _kind(config).from_config(copy.deepcopy(config), dtype=torch.float32)
    random = torch.Generator().manual_seed(0)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            _fill(parameter.data, name, _axis_in(module), GAIN[dtype], random)
        for name in sorted(dict(module.named_buffers(recurse=False)).keys() & module.state_dict().keys()):
            _fill(module.get_buffer(name), name, -1, GAIN[dtype], random)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def _axis_in(module: torch.nn.Module) -> int:
    """Which axis of a module's matrices is summed over; `is_transposed` is what transformers says of experts."""
    return -2 if isinstance(module, Conv1D) or getattr(module, "is_transposed", False) else -1


def _fill(values: torch.Tensor, name: str, axis_in: int, gain: float, random: torch.Generator) -> None:
    if name.endswith("bias"):
        values.normal_(0, 0.3, generator=random)
    elif values.ndim == 1:  # a norm's gain
        values.uniform_(0.5, 1.5, generator=random)
    else:
        values.normal_(0, gain * values.shape[axis_in] ** -0.5, generator=random)


def load_reference(folder: Path, dtype: str = "auto", **settings: Any) -> torch.nn.Module:
    """transformers' model of a checkpoint, in its own dtype or another; no tensor may be made up.

    `settings` replace words of its config.json.
    """
    model, info = _kind(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **PLAIN, **settings
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


def logits_of(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    """Float32 [T, V] of one forward over all tokens, with no cache."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


@cache
def reference(folder: Path) -> tuple[list[int], np.ndarray]:
    """The tokens of prompt and decode steps, and transformers' logits of them."""
    model = load_reference(folder)
    tokens = random_tokens(PROMPT + STEPS, model.config.vocab_size)
    logits = logits_of(model, tokens)
    assert 0.3 < logits.std() < 3
    return tokens, logits


@cache
def reference_float32(folder: Path) -> np.ndarray:
    """The logits of `reference` computed in float32 from the same weights."""
    return logits_of(load_reference(folder, "float32"), reference(folder)[0])


def run(session: Session, tokens: list[int], prompt: int, **inputs: np.ndarray) -> np.ndarray:
    """Logits of a prompt and of the tokens after it, fed one by one: [R, V]; R counts one prompt row or all.

    `inputs`, of models that take more than tokens, have a row for each.
    """
    session.reset()
    return np.concatenate(list(_steps(session, tokens, prompt, inputs)))


def _steps(session: Session, tokens: list[int], prompt: int, inputs: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    yield session.prefill(tokens[:prompt], **{name: rows[:prompt] for name, rows in inputs.items()})
    for at in range(prompt, len(tokens)):
        yield session.decode(tokens[at], **{name: rows[at : at + 1] for name, rows in inputs.items()})[None]


def run_all(job: Job, tokens: list[int], target: str, out: Path) -> np.ndarray:
    """Logits of every row of a prefill and of every decode step, compiled for a target."""
    bundle = build(job, out=out, target=target, max_seq_len=len(tokens), buckets=(PROMPT,), all_logits=True)
    return run(load(bundle), tokens, PROMPT)


def assert_parity(folder: Path, target: str, out: Path) -> Distance:
    """A checkpoint's logits against transformers'; at bfloat16 also that they are no further from float32."""
    job = open_job(checkpoint=str(folder))
    tokens, wanted = reference(folder)
    ours = run_all(job, tokens, target, out)
    if job.graph.dtype == "bfloat16":
        exact = reference_float32(folder)
        assert (ours - exact).std() <= NO_WORSE * (wanted - exact).std()
    return assert_near(ours, wanted, job.graph.dtype)


def assert_chunks_and_padding(folder: Path, out: Path) -> None:
    """A prompt of 700 in chunks of 512 and 188 (padded to 256, past the context's end), and one of 9 (padded)."""
    context, job = 720, open_job(checkpoint=str(folder))
    bundle = build(job, out=out, target="cpu", max_seq_len=context, buckets=(256, 512))
    session = load(bundle)
    tokens = random_tokens(context, job.graph.config.vocab_size, seed=1)
    wanted = logits_of(load_reference(folder), tokens)
    for prompt, end in ((700, context), (9, 40), (257, 290)):
        assert_near(run(session, tokens[:end], prompt), wanted[prompt - 1 : end], job.graph.dtype)


def assert_every_tensor_matters(folder: Path) -> None:
    """Each tensor, except those of images, moved to what it would be if overlooked moves transformers' own logits ten
    tolerances or more."""
    model = load_reference(folder)
    tokens = random_tokens(128, model.config.get_text_config().vocab_size)
    before = logits_of(model, tokens)
    of_text = {name: values for name, values in model.state_dict().items() if not any(part in name for part in IMAGES)}
    for name, values in of_text.items():
        saved = values.clone()
        values.copy_(_overlooked(saved, name))
        moved = distance(logits_of(model, tokens), before).worst
        values.copy_(saved)
        assert moved > 10 * TOLERANCE["float32"], f"{name} moves the logits by {moved:.1e} only"


def assert_setting_matters(folder: Path, **settings: Any) -> None:
    """Another value of a config.json key moves transformers' own logits well past the tolerance.

    Ten times past it would be asking too much: the two GELUs are 2 tolerances apart.
    """
    before, after = load_reference(folder), load_reference(folder, **settings)
    tokens = random_tokens(PROMPT, before.config.vocab_size)
    moved = distance(logits_of(after, tokens), logits_of(before, tokens)).worst
    assert moved > 1.5 * TOLERANCE["float32"], f"{settings} moves the logits by {moved:.1e} only"


def _overlooked(values: torch.Tensor, name: str) -> torch.Tensor:
    if name.endswith("bias"):
        return torch.zeros_like(values)
    return torch.ones_like(values) if values.ndim == 1 else values.roll(1, 0 if len(values) > 1 else 1)
