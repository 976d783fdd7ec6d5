"""Sequences of different lengths in one program, their cache blocks shuffled: each has the logits of its single run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from transformers import DeepseekV3Config, GPT2Config, GptOssConfig, MistralConfig, PreTrainedConfig

from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.program.step_inputs import Chunk, chunks_of, make_step, sequence_step
from bringup.compile.runtime.session import Session, load
from tests.models import parity
from tests.models.test_deepseek_v3 import save_biased

NEAR = 1e-5  # of logits of order 1, in float32: sums in another order
CONTEXT, BUCKET, BATCH = 256, 32, 4
COMMON = {"vocab_size": 97, "max_position_embeddings": 256, "num_hidden_layers": 2}
CASES: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=97, n_positions=256, n_embd=24, n_layer=2, n_head=3),
    "llama-window": MistralConfig(
        **COMMON, hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        sliding_window=11,
    ),
    "deepseek_v3": DeepseekV3Config(
        **COMMON, hidden_size=30, intermediate_size=38, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=9,
        kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9, first_k_dense_replace=1,
        n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=14, n_group=2,
        topk_group=1,
    ),
    "gpt_oss": GptOssConfig(
        **COMMON, hidden_size=36, intermediate_size=20, num_attention_heads=3, num_key_value_heads=3, head_dim=8,
        num_local_experts=5, num_experts_per_tok=2, sliding_window=17,
    ),
}  # fmt: skip


@dataclass
class Running:
    """One sequence: what it says, how much of that is in, and the logits so far, by the number of tokens in."""

    tokens: list[int]
    row: int
    blocks: list[int] = field(default_factory=list)
    done: int = 0
    logits: dict[int, np.ndarray] = field(default_factory=dict)


class Driver:
    """Takes steps of several sequences through a session's executor; blocks come from a shuffled pool."""

    def __init__(self, session: Session) -> None:
        self.executor, self.interface = session.executor, session.interface
        self.free = np.random.default_rng(5).permutation(self.interface.num_blocks - 1).tolist()

    def step(self, entry: str, taken: Sequence[tuple[Running, int]]) -> None:
        """Takes in so many tokens of each sequence."""
        chunks = []
        for one, count in taken:
            while len(one.blocks) * self.interface.block_size < one.done + count:
                one.blocks.append(self.free.pop())
            tokens = one.tokens[one.done : one.done + count]
            chunks.append(Chunk(tokens, one.done, one.blocks, one.row, one.done + count))
        logits = self.executor.step(entry, make_step(chunks, self.interface.entry(entry), self.interface))["logits"]
        for (one, count), row in zip(taken, logits, strict=False):
            one.done += count
            one.logits[one.done] = row

    def leave(self, one: Running) -> None:
        self.free[:0] = one.blocks


def converse(session: Session) -> list[Running]:
    """Prompts at once and in chunks, packed and alone; sequences join and leave, and blocks are used again."""
    texts = [parity.random_tokens(count, 97, seed=count) for count in (150, 60, 25, 90)]
    first, second, third, fourth = (
        Running(text, row) for text, row in zip(texts, (2, 0, 3, 2), strict=True)
    )  # the fourth has the row of the first, which has left
    drive = Driver(session)
    for count, size in chunks_of(100, [BUCKET]):
        drive.step(f"prefill_{size}", [(first, count)])
    for _ in range(3):
        drive.step("decode", [(first, 1)])
    drive.step("prefill_32_4", [(second, 13), (first, 1), (third, 9)])
    for _ in range(4):
        drive.step("decode_4", [(third, 1), (first, 1), (second, 1)])
    drive.step("decode_2", [(second, 1), (first, 1)])
    drive.leave(first)
    drive.step("prefill_32_4", [(fourth, 32)])
    drive.step("prefill_32_4", [(fourth, 30), (third, 2)])
    for _ in range(6):
        drive.step("decode_4", [(fourth, 1), (second, 1), (third, 1)])
    drive.step("decode_2", [(fourth, 1), (third, 1)])
    return [first, second, third, fourth]


def alone(session: Session, one: Running) -> dict[int, np.ndarray]:
    """The logits of a sequence by itself, of the same prompt."""
    session.reset()
    (start, *_), logits = sorted(one.logits), {}
    logits[start] = session.prefill(one.tokens[:start])[-1]
    for at in range(start, one.done):
        logits[at + 1] = session.decode(one.tokens[at])
    return logits


def at_once(job: Job, one: Running) -> np.ndarray:
    """The same, by torch without compiling, all tokens in one step: no chunk, no window in a ring."""
    return Eager(job, CONTEXT)(sequence_step(one.tokens[: one.done], 0, one.done, CONTEXT)).numpy()


def far(ours: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(ours - wanted).max() / np.abs(wanted).max())


def cases(fast: str) -> list[object]:
    """Each case on `cpu`, all slow; that of one name on `torch`."""
    return [pytest.param(fast, "torch"), *(pytest.param(name, "cpu", marks=pytest.mark.slow) for name in CASES)]


def job_of(name: str, folder: Path) -> Job:
    save = save_biased if name == "deepseek_v3" else parity.save_checkpoint
    return open_job(checkpoint=str(save(CASES[name], folder)))


@pytest.mark.parametrize(("name", "target"), cases("llama-window"))
def test_each_sequence_has_the_logits_of_its_single_run(
    name: str, target: str, tmp_path: Path, record_property
) -> None:
    job = job_of(name, tmp_path)
    settings = {"target": target, "max_seq_len": CONTEXT, "buckets": (BUCKET,)}
    many = load(build(job, out=tmp_path / "many", max_batch_size=BATCH, **settings))
    # On `cpu` the session of one sequence runs the entry points for one of the same program: a compile less.
    single = load(build(job, out=tmp_path / "single", **settings)) if target == "torch" else many
    assert [entry.name for entry in many.interface.entries] == [
        "prefill_32", "prefill_32_4", "decode", "decode_2", "decode_4"
    ]  # fmt: skip
    worst = compared = 0
    windows = name in ("llama-window", "gpt_oss")
    assert ("ring" in {state.kind for state in many.interface.states}) is windows
    finished = converse(many)
    for one in finished:
        wanted, whole = alone(single, one), at_once(job, one)
        for length, logits in one.logits.items():
            worst = max(worst, *(far(logits, row) for row in (wanted[length], whole[length - 1])))
            compared += 1
    record_property("parity", f"{name} {target}: {worst:.1e} over {compared} rows")
    print(f"{name} {target}: {worst:.1e} over {compared} rows")
    assert worst <= NEAR


def test_a_session_of_one_sequence_on_a_program_for_many(tmp_path: Path) -> None:
    """The programs are those of the test before."""
    job = job_of("llama-window", tmp_path)
    settings = {"target": "torch", "max_seq_len": CONTEXT, "buckets": (BUCKET,)}
    prompt = parity.random_tokens(40, 97)
    texts = [
        list(
            load(build(job, out=tmp_path / f"b{size}", max_batch_size=size, **settings)).generate(
                prompt, max_new_tokens=9
            )
        )
        for size in (1, BATCH)
    ]
    assert texts[0] == texts[1]
