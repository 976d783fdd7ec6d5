"""The tests of every family against transformers: logits, tensors and settings. Small sizes, many shapes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, open_job
from bringup.compile.parity.reference import cache_name
from bringup.compile.pipeline import build, check
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.config.neutral import NEUTRAL
from tests.models import parity

PROMPT, STEPS = 60, 16  # past the end of a cache block
WORST = {"torch": 1e-4, "cpu": 1e-4, "iree-cpu": 2e-4}  # largest |difference| over largest |reference| at float32
NEEDS_POSITIONS = ("bamba",)  # transformers 5.24 counts positions from 0 in each call, unless it gets them
# Families, and others that together have the same operations, which slow tests use instead. `benchmarks.fidelity`
# measures all.
SAME_OPERATIONS: dict[str, tuple[str, ...]] = {
    "bamba": ("granitemoehybrid",),
    "deepseek_v2": ("deepseek_v3",),
    "deepseek_v32": ("glm_moe_dsa",),
    "exaone": ("llama",),
    "glm4_moe": ("deepseek_v3",),
    "glm4_moe_lite": ("deepseek_v3",),
    "internlm": ("llama",),
    "lfm2": ("lfm2_moe",),
    "llava": ("llama",),
    "minimax_m2": ("mimo_v2_flash", "olmo2"),
    "ministral3": ("llama4",),
    "qwen": ("qwen2",),
    "qwen3_5": ("qwen3_5_moe",),
    "qwen3_moe": ("qwen2_moe",),
}
MOVED = 1e-5  # logits that differ by more were changed, not only rounded


@cache
def reference(folder: Path, dtype: str = "auto") -> tuple[list[int], np.ndarray]:
    """Tokens, and transformers' logits of a prompt at once and then of one token after the other.

    In the checkpoint's dtype or in another.
    """
    model = parity.load_reference(folder, dtype)
    tokens = parity.random_tokens(PROMPT + STEPS, model.config.get_text_config().vocab_size)
    return tokens, stepwise(model, tokens, PROMPT)


def stepwise(model: torch.nn.Module, tokens: list[int], prompt: int) -> np.ndarray:
    """Float32 [T, V]: all rows of the prompt, then of each token after it, by the model's own cache."""
    return turnwise(model, [tokens[:prompt], *([token] for token in tokens[prompt:])])


def turnwise(model: Any, turns: list[list[int]]) -> np.ndarray:
    """Float32 [T, V]: the rows of tokens that come in turn by turn, by transformers' own cache.

    As in the `generate` of its Phi-3, a sequence that outgrows LongRoPE's short factors is computed again.
    """
    words = model.config.get_text_config()
    longrope = (getattr(words, "rope_parameters", None) or {}).get("rope_type") == "longrope"
    short = words.rope_parameters["original_max_position_embeddings"] if longrope else None
    rows: list[torch.Tensor] = []
    done: list[int] = []
    past, name = None, cache_name(model)
    for turn in turns:
        again = short is not None and len(done) <= short < len(done) + len(turn)
        with torch.no_grad():
            given = torch.tensor([done + turn if again else turn])
            settings: dict[str, Any] = {name: None if again else past}
            if words.model_type in NEEDS_POSITIONS:
                settings["position_ids"] = torch.arange(len(done), len(done) + len(turn))[None]
            output = model(given, use_cache=True, **settings)
        past = output[name]
        rows.append(output.logits[0, -len(turn) :].float())
        done = done + turn
    return torch.cat(rows).numpy()


def assert_parity(written: Written, target: str, out: Path) -> parity.Distance:
    """Prefill and decode, compiled for a target, against transformers'.

    Inputs other than tokens come as numpy's own floats, which are twice as wide as the bundle's.
    """
    (tokens, wanted), job = written.theirs(), written.job()
    bundle = build(job, out=out, target=target, max_seq_len=len(tokens), buckets=(PROMPT,), all_logits=True)
    inputs = {name: rows.astype(np.float64) for name, rows in written.inputs.items()}
    return assert_near(parity.run(load(bundle), tokens, PROMPT, **inputs), wanted, target)


def assert_eager_parity(written: Written) -> parity.Distance:
    """Prefill and decode, by torch without compiling, against transformers'."""
    (tokens, wanted), job = written.theirs(), written.job()
    check(job).raise_if_errors()
    return assert_near(eager_logits(job, tokens, PROMPT, **written.inputs), wanted, "torch")


def assert_near(ours: np.ndarray, wanted: np.ndarray, target: str) -> parity.Distance:
    """Logits at float32, and the token that they choose."""
    found = parity.distance(ours, wanted)
    print(found)
    assert found.worst <= WORST[target], str(found)
    assert found.wrong == 0
    return found


def eager_logits(job: Job, tokens: list[int], prompt: int, **inputs: np.ndarray) -> np.ndarray:
    """Ours, by torch without compiling: what `stepwise` gives for transformers. `inputs` have a row for each token."""
    eager, lengths = Eager(job, len(tokens)), job.graph.recompute_lengths()
    rows: list[np.ndarray] = []
    done = 0
    for end in range(prompt, len(tokens) + 1):
        first = 0 if any(done <= length < end for length in lengths) else done
        step = sequence_step(tokens[first:end], first, end - first, len(tokens))
        step |= {name: array[first:end] for name, array in inputs.items()}
        rows.append(eager(step, decode=end - first == 1).float().numpy()[done - end :])
        done = end
    return np.concatenate(rows)


def assert_no_key_is_overlooked(kind: type[HFConfig], config: PreTrainedConfig) -> None:
    """Whatever transformers writes is known to change no number, or nonsense in it is refused."""
    raw = json.loads(config.to_json_string(use_diff=False))
    raw = {key: value for key, value in raw.items() if value is not None}
    for key in raw.keys() - NEUTRAL:
        with pytest.raises(BringupError, match=r"BU12[0-4]"):
            kind.from_hf(raw | {key: "nonsense"})


def assert_keys_walk(
    folder: Path,
    changed: Mapping[str, list[Any]] | None = None,
    publish: Callable[[Path, Path], Path] = lambda folder, out: folder,
) -> dict[str, str]:
    """Every key of config.json, changed: what moves transformers' logits moves ours likewise, or is refused.

    `changed` gives values to try where the general ones (`_others`) say nothing. What transformers itself refuses is
    left out. Where transformers has no code for the family, `publish` makes a checkpoint of it, in another folder, of
    one that it reads. Tells, key by key, what happened.
    """
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    tokens = parity.random_tokens(40, raw.get("vocab_size", raw.get("text_config", raw).get("vocab_size")))
    prompt = 36  # four steps of decode
    before = stepwise(parity.load_reference(folder), tokens, prompt)
    departing: dict[str, str] = {}
    for key, words in _walk(raw, changed or {}):
        other = _copy(folder, words)
        try:
            theirs = _theirs(other, tokens, prompt)
            if theirs is None:
                departing.setdefault(key, "transformers refuses")
                continue
            moved = _far(theirs, before)
            try:
                job = open_job(checkpoint=str(publish(other, other / "published")))
                check(job).raise_if_errors()
                ours = eager_logits(job, tokens, prompt)
            except BringupError as refusal:
                departing[key] = refusal.findings[0].code
                continue
            assert _far(ours, theirs) <= WORST["torch"], f"`{key}`: ours {_far(ours, theirs):.1e} away from theirs"
            departing[key] = "same change" if moved > MOVED else departing.get(key, "no change")
        finally:
            shutil.rmtree(other)
    return departing


def _walk(
    raw: dict[str, Any], changed: Mapping[str, list[Any]], path: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key with the config in which it has another value; groups are walked into."""
    for key, value in raw.items():
        name = path + key
        if isinstance(value, dict):
            yield from ((inner, raw | {key: words}) for inner, words in _walk(value, changed, f"{name}."))
        for other in changed.get(name, () if key in NEUTRAL else _others(value)):
            yield name, raw | {key: other}


def _others(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, max(1, value - 1), value * 2]
        case float():
            return [value * 1.5 + 0.01]
        case str():
            return ["gelu", "relu"] if value in ("silu", "gelu", "relu") else ["nonsense"]
        case list():
            return [list(reversed(value)), value[:-1]]
        case None:
            return [9, 2, True]
        case _:
            return []


def _copy(folder: Path, words: dict[str, Any]) -> Path:
    other = folder.with_name(f"{folder.name}-changed")
    shutil.copytree(folder, other)
    (other / "config.json").write_text(json.dumps(words), "utf-8")
    return other


def _theirs(folder: Path, tokens: list[int], prompt: int) -> np.ndarray | None:
    """transformers' logits; None where it does not take the config, or not with these weights."""
    try:
        model = parity.load_reference(folder)
        logits = stepwise(model, tokens, prompt)
    except Exception:  # whatever it meets, it has no logits to compare with
        return None
    return logits if np.isfinite(logits).all() else None


def _far(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def renamed(
    folder: Path,
    out: Path,
    rename: Callable[[str], str],
    config: dict[str, Any],
    fused: Mapping[str, tuple[str, ...]] | None = None,
) -> Path:
    """A checkpoint with other names and another config.json: for families that transformers has no code for.

    `fused`: what is put together first, row after row, {"qkv_proj": ("q_proj", "k_proj", "v_proj")}.
    """
    from safetensors.torch import load_file, save_file

    out.mkdir()
    tensors = load_file(folder / "model.safetensors")
    for whole, parts in (fused or {}).items():
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            pieces = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], whole)] = torch.cat(pieces)
    save_file({rename(name): array for name, array in tensors.items()}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config), "utf-8")
    return out


@dataclass(frozen=True)
class Written:
    """A checkpoint, and the one that transformers reads: another where it has no code for the family.

    `model`: the name to ask for it by, where its architecture is another family's.
    """

    checkpoint: Path
    reference: Path
    model: str | None = None

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        """What the model takes beside tokens, a row for each."""
        return {}

    def theirs(self, dtype: str = "auto") -> tuple[list[int], np.ndarray]:
        """Tokens, and the logits of transformers' code in a dtype, its own or another: as `reference` has them."""
        return reference(self.reference, dtype)

    def job(self) -> Job:
        return open_job(self.model, str(self.checkpoint))


def written(module: ModuleType, name: str, folder: Path, dtype: str = "float32") -> Written:
    """One of a test module's CASES: as its `write(name, folder, dtype)` does it, or as transformers saves it."""
    if hasattr(module, "write"):
        return module.write(name, folder, dtype)
    parity.save_checkpoint(module.CASES[name], folder, dtype)
    return Written(folder, folder)
