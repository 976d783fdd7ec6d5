"""The time of `bringup check` on faulty checkpoints, as a multiple of the time on the valid ones.

    python -m benchmarks.check_times [--rounds N] [--only BASE]… [--out FILE]

There are two groups: every mutation of tests/check/mutations, on its tiny checkpoint; and the faults of `FAULTS` on
full-size published checkpoints of which only the headers are real (tests/flagships). Each time is the processor time
(user and system) of a process. In each round the valid checkpoint is checked directly before the faulty one, so that
other load affects both. The ratio of a fault is the median of the ratios of its rounds. A fault with a ratio above
`NEAR` is measured for `MORE` times as many rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.flagships import CHECK, KEEP_CODE, run
from tests.check.mutations.bases import base
from tests.check.mutations.mutation import Case, Trial
from tests.check.mutations.stored.table import STORED_MUTATIONS
from tests.check.mutations.table import MUTATIONS
from tests.flagships.headers import Tensors, tensors_of, write
from tests.flagships.published import BY_NAME

LIMIT = 3.0  # times the sound checkpoint's time
NEAR, MORE = 2.0, 3
LARGE = ("deepseek-v3", "gpt-oss-120b", "llama-3.1-405b", "qwen3-235b-a22b")


@dataclass
class Spoilt:
    """A published checkpoint in which a fault is made."""

    config: dict[str, Any]
    tensors: Tensors
    matrix: str  # a matrix in the middle of the model
    lost: list[str] = field(default_factory=list)  # shards

    def rename(self, new: Callable[[str], str]) -> None:
        self.tensors = {new(name): tensor for name, tensor in self.tensors.items()}

    def reshape(self, wanted: Callable[[str], bool], new: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
        for name, (dtype, shape) in self.tensors.items():
            if wanted(name):
                self.tensors[name] = dtype, new(shape)

    def remove(self, wanted: Callable[[str], bool]) -> None:
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if not wanted(name)}


def scaled(key: str, factor: int) -> Callable[[Spoilt], None]:
    def change(spoilt: Spoilt) -> None:
        spoilt.config[key] *= factor

    return change


def worded(key: str, value: Any) -> Callable[[Spoilt], None]:
    def change(spoilt: Spoilt) -> None:
        spoilt.config[key] = value

    return change


def layers(more: int) -> Callable[[Spoilt], None]:
    def change(spoilt: Spoilt) -> None:
        spoilt.config["num_hidden_layers"] += more

    return change


def reversed_(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1]


FAULTS: dict[str, Callable[[Spoilt], None]] = {
    "hidden_size doubled": scaled("hidden_size", 2),
    "intermediate_size doubled": scaled("intermediate_size", 2),
    "vocab_size doubled": scaled("vocab_size", 2),
    "num_attention_heads doubled": scaled("num_attention_heads", 2),
    "hidden_size missing": lambda s: s.config.pop("hidden_size"),
    "hidden_size a string": lambda s: s.config.update(hidden_size=str(s.config["hidden_size"])),
    "unknown activation": worded("hidden_act", "swoosh"),
    "unknown rope type": worded("rope_scaling", {"rope_type": "spiral", "factor": 4.0}),
    "unknown key": worded("attention_cap", 30.0),
    "misspelt key": lambda s: s.config.update(num_hidden_layer=s.config.pop("num_hidden_layers")),
    "one layer more in the config": layers(1),
    "one layer less in the config": layers(-1),
    "no quantization_config": lambda s: s.config.pop("quantization_config", None),
    "one matrix missing": lambda s: s.tensors.pop(s.matrix),
    "one matrix renamed": lambda s: s.rename(lambda name: name + "s" if name == s.matrix else name),
    "one matrix transposed": lambda s: s.reshape(lambda name: name == s.matrix, reversed_),
    "every name without `model.`": lambda s: s.rename(lambda name: name.removeprefix("model.")),
    "every name with `module.`": lambda s: s.rename(lambda name: f"module.{name}"),
    "every `self_attn` renamed": lambda s: s.rename(lambda name: name.replace("self_attn", "attention")),
    "every `down_proj` renamed": lambda s: s.rename(lambda name: name.replace("down_proj", "w2")),
    "every attention matrix transposed": lambda s: s.reshape(lambda name: "self_attn" in name, reversed_),
    "a layer missing": lambda s: s.remove(lambda name: name.startswith(s.matrix.split("self_attn")[0])),
    "every norm missing": lambda s: s.remove(lambda name: "norm" in name),
    "a tensor more in each layer": lambda s: s.tensors.update(
        {f"model.layers.{n}.gain": ("BF16", (7,)) for n in range(s.config["num_hidden_layers"])}
    ),
    "a file missing": lambda s: s.lost.append("middle"),
}


@dataclass(frozen=True)
class Row:
    """A fault of a checkpoint; of each round the processor seconds for the sound checkpoint, and for the faulty one."""

    where: str
    fault: str
    rounds: list[tuple[float, float]]

    @property
    def ratio(self) -> float:
        return statistics.median(faulty / sound for sound, faulty in self.rounds)

    def line(self) -> str:
        sound, faulty = (statistics.median(seconds) for seconds in zip(*self.rounds, strict=True))
        ratios = [faulty / sound for sound, faulty in self.rounds]
        return (
            f"| {self.where} | {self.fault} | {len(ratios)} | {sound:.2f} | {faulty:.2f} | {self.ratio:.1f} | "
            f"{min(ratios):.1f} to {max(ratios):.1f} |"
        )


def compared(where: str, fault: str, sound: Case, faulty: Case, rounds: int) -> Row:
    """Checks both in turn, and prints the row."""
    row = Row(where, fault, [])
    while len(row.rounds) < rounds or (row.ratio > NEAR and len(row.rounds) < MORE * rounds):
        row.rounds.append((processor(sound), processor(faulty)))
    print(row.line(), flush=True)
    return row


def processor(case: Case) -> float:
    """Processor seconds of a `check`, a whole process."""
    done = run(CHECK, *case.words())
    assert done.code in (0, 1, 2), (case, done)
    return done.processor


def tiny(folder: Path, rounds: int) -> list[Row]:
    """Every mutation, those among them that only a later command finds."""
    sound: dict[str, Case] = {}
    rows: list[Row] = []
    for mutation in (*MUTATIONS, *STORED_MUTATIONS):
        if mutation.base not in sound:
            sound[mutation.base] = Trial(base(mutation.base)).write(folder / mutation.base)
            processor(sound[mutation.base])  # files and code are in memory from here on
        trial = Trial(base(mutation.base))
        mutation.spoil(trial)
        faulty = trial.write(folder / mutation.key)
        rows.append(compared(mutation.base, mutation.key, sound[mutation.base], faulty, rounds))
    return rows


def large(name: str, folder: Path, rounds: int) -> list[Row]:
    """Every fault in one published checkpoint."""
    flagship = BY_NAME[name]
    tensors = tensors_of(flagship)
    sound = Case(write(folder / "sound", flagship, tensors))
    processor(sound)
    rows: list[Row] = []
    for number, (fault, spoil) in enumerate(FAULTS.items()):
        config = flagship.config
        middle = f"model.layers.{config['num_hidden_layers'] // 2}.self_attn.o_proj.weight"
        spoilt = Spoilt(config, dict(tensors), middle)
        spoil(spoilt)
        if (spoilt.config, spoilt.tensors, spoilt.lost) == (flagship.config, tensors, []):
            continue  # it has nothing of the kind
        at = write(folder / str(number), flagship, spoilt.tensors, spoilt.config)
        if spoilt.lost:
            (at / flagship.shard_names()[flagship.shards // 2]).unlink()
        rows.append(compared(name, fault, sound, Case(at), rounds))
    return rows


def table(rows: list[Row]) -> list[str]:
    head = [
        "| checkpoint | fault | rounds | sound, s | faulty, s | ratio | of rounds |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    return head + [row.line() for row in sorted(rows, key=lambda row: -row.ratio)]


def report(small: list[Row], whole: list[Row], rounds: int) -> str:
    above, near = (sum(row.ratio > bound for row in small + whole) for bound in (LIMIT, NEAR))
    return "\n".join(
        [
            "Processor time of `bringup check` on faulty checkpoints, whole processes, as a multiple of the time on "
            f"the sound one right before: medians of {rounds} rounds' ratios, of {MORE * rounds} where that is above "
            f"{NEAR:g}. Of {len(small) + len(whole)}, {above} are above {LIMIT:g} times, {near} above {NEAR:g}.",
            "",
            "## Published checkpoints, headers only",
            "",
            *table(whole),
            "",
            f"## Tiny checkpoints: the slowest 20 of {len(small)} mutations",
            "",
            *table(small)[:22],
            "",
            f"{datetime.now():%Y-%m-%d %H:%M}, Linux {platform.release()}, Python {platform.python_version()}, "
            f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=["tiny", *LARGE])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.pop(KEEP_CODE, None)
    wanted = options.only or ["tiny", *LARGE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = [row for each in LARGE if each in wanted for row in large(each, folder / each, options.rounds)]
        small = tiny(folder / "tiny", options.rounds) if "tiny" in wanted else []
    text = report(small, whole, options.rounds) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
