"""What every family shows against transformers, over the CASES of tests/models/test_<family>.py.

Logits without compiling and compiled; that no tensor and no key of config.json is overlooked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.graphs.registry import FAMILIES
from tests.models import family, parity
from tests.models.family import SAME_OPERATIONS
from tests.models.rope_tables import WITHOUT_ROPE, rope_tables

# Which cases are compiled in `make test`. `make test-full` compiles those of ON_CPU for `cpu`, and the first of a
# family for `torch` and `iree-cpu`, unless SAME_OPERATIONS names others.
COMPILED: dict[str, tuple[str, ...]] = {
    "torch": ("bloom-five-heads",),
    "cpu": ("gpt2-saved",),
    "iree-cpu": (),
}  # fmt: skip
# A family's cases that lower to different programs. The others differ from those, or from another family's, in sizes,
# in weights or in values of tables only; test_logits computes them without compiling.
ON_CPU: dict[str, tuple[str, ...]] = {
    "bamba": ("groups-biases-tied",),
    "bloom": ("five-heads", "residual-after-norm"),
    "deepseek_mtp": ("dense-straight-queries-tied",),
    "deepseek_v2": ("groups-yarn", "lite-more-experts-than-tokens"),
    "deepseek_v3": ("groups-yarn", "dense-halves-biases"),
    "deepseek_v32": ("few-keys-yarn", "more-keys-than-there-are"),
    "eagle3": ("few-tokens-llama3", "other-width-biases"),
    "exaone": ("gelu",),
    "falcon_h1": ("groups-norm-biases-tied", "no-norm"),
    "gemma2": ("one-key-head-low-caps", "no-caps-untied-biases"),
    "gemma3": ("logit-cap-untied-biases",),
    "gemma4": ("shared-layers-with-inputs", "experts-untied"),
    "glm4_moe": ("more-experts-than-tokens", "groups-tied"),
    "glm4_moe_lite": ("listed-layers-halves-biases",),
    "glm_moe_dsa": ("shared-keys-yarn", "every-layer-selects-biases-tied"),
    "gpt2": ("saved", "saved-bfloat16", "untied-gelu"),
    "gpt_neox": ("a-quarter-turns", "one-after-the-other-tied"),
    "gpt_oss": ("more-experts-than-tokens", "every-expert-tied"),
    "gpt_oss_mxfp4": ("square",),
    "granitemoehybrid": ("more-experts-than-tokens", "dense-groups-biases"),
    "internlm": ("biases",),
    "lfm2": ("biases-tied", "three-taps"),
    "lfm2_moe": ("dense-layer-tied",),
    "llama": ("one-key-head-biases", "mistral-layer-types", "smollm2-tied-bfloat16", "mistral-window-bfloat16"),
    "llama4": ("short-chunks-dense-layers", "more-experts-than-tokens-tied"),
    "llava": ("llama",),
    "mimo_v2_flash": ("published-pattern", "groups-biases"),
    "minimax_m2": ("part-turns-more-experts-than-tokens",),
    "ministral3": ("window-yarn-tied",),
    "mistral4": ("groups-yarn-tied", "straight-queries-halves-biases"),
    "mistral_large4": ("shared-latents-and-keys-yarn", "every-layer-selects-biases-tied"),
    "mixtral": ("more-experts-than-tokens", "window-tied"),
    "nemotron_h": ("groups-latent-biases",),
    "olmo2": ("biases-llama3",),
    "phi3": ("longrope-part-turns-tied",),
    "qwen": ("odd-heads",),
    "qwen2": ("windows-from-a-layer-on",),
    "qwen2_moe": ("dense-layers-tied", "windows-every-expert"),
    "qwen3": ("windows-biases", "dynamic"),
    "qwen3_mtp": ("next-dense-biases-tied", "moe-linear-rope"),
    "qwen3_5": ("sections-of-rope", "biases-tied"),
    "qwen3_5_moe": ("more-value-heads",),
    "qwen3_moe": ("dense-layers-tied",),
    "qwen3_next": ("more-experts-than-tokens", "dense-layers-biases-tied"),
    "rare_words": ("neox-3-of-12-channels", "bloom-slow-but-exact", "deepseek-v2-normalised"),
}
MORE = ("gpt_oss_mxfp4", "rare_words")  # files of cases beside the families' own
# The cases in which every tensor matters, where that is not so in each (no token may choose some of the experts) or
# where one has the tensors of all.
EVERY_TENSOR_MATTERS = {
    "deepseek_v3": ("groups-yarn",), "deepseek_v32": ("few-keys-yarn",), "falcon_h1": ("groups-norm-biases-tied",),
    "glm_moe_dsa": ("shared-keys-yarn",), "llama4": ("short-chunks-dense-layers",), "mistral4": ("groups-yarn-tied",),
    "mistral_large4": ("shared-latents-and-keys-yarn",), "nemotron_h": ("groups-latent-biases",),
    "deepseek_mtp": (), "eagle3": (), "gpt_oss_mxfp4": (), "llava": (), "mixtral": (), "qwen3_mtp": (),
    "rare_words": (),
}  # fmt: skip
# The cases whose keys are walked, where they are not the first of ON_CPU; drafts: test_mtp_keys.py.
WALKED = {
    "gpt2": ("saved", "original"), "llama": ("one-key-head-biases", "head-dim-llama3", "mistral-window"),
    "deepseek_mtp": (), "eagle3": (), "gpt_oss_mxfp4": (), "qwen3_mtp": (), "rare_words": (),
}  # fmt: skip
WITHOUT_EXPERTS = (
    "deepseek_mtp-dense-straight-queries-tied",
    "mimo_v2_flash-wide-values-tied",
)  # which routing does not affect
# Their files have a test of their own: their keys are those of another class, or of a config inside the config.
OWN_KEYS = {"exaone", "gpt2", "internlm", "llama", "llava", "mistral_large4", "qwen"}


@dataclass(frozen=True)
class Case:
    """One of a file's CASES, in a dtype."""

    family: str
    name: str
    dtype: str = "float32"

    @property
    def module(self) -> ModuleType:
        return import_module(f"tests.models.test_{self.family}")

    def __str__(self) -> str:
        return f"{self.family}-{self.name}" + f"-{self.dtype}" * (self.dtype != "float32")


def every_case() -> Iterator[Case]:
    for name in (*(each.name for each in FAMILIES), *MORE):
        module = import_module(f"tests.models.test_{name}")
        for case in module.CASES:
            yield Case(name, case)
        for case in getattr(module, "BFLOAT16", ()):
            yield Case(name, case, "bfloat16")


CASES = list(every_case())
FLOAT32 = [case for case in CASES if case.dtype == "float32"]
ON_CPU_CASES = [case for case in CASES if str(case).removeprefix(f"{case.family}-") in ON_CPU[case.family]]
# Of each file, the cases that `make test` computes: those that lower to different programs.
FAST = {str(case) for case in ON_CPU_CASES}


def listed(table: dict[str, tuple[str, ...]]) -> list[Case]:
    return [case for case in FLOAT32 if case.name in table.get(case.family, (case.name,))]


def marked(cases: Iterable[Case]) -> list[Any]:
    """Each case, and whether it is slow."""
    slow = pytest.mark.slow
    return [pytest.param(case, id=str(case), marks=() if str(case) in FAST else slow) for case in cases]


def compiled() -> Iterator[Any]:
    for case in ON_CPU_CASES:
        short = str(case).removeprefix(f"{case.family}-")
        first = short == ON_CPU[case.family][0] and case.family not in SAME_OPERATIONS
        for target in ("torch", "cpu", "iree-cpu") if first else ("cpu",):
            marks = () if str(case) in COMPILED[target] else pytest.mark.slow
            yield pytest.param(case, target, id=f"{case}-{target}", marks=marks)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], family.Written]:
    """The checkpoint of a case, written once."""

    @cache
    def once(case: Case) -> family.Written:
        return family.written(case.module, case.name, tmp_path_factory.mktemp(str(case)), case.dtype)

    return once


def test_the_table_names_cases() -> None:
    assert sum(map(len, ON_CPU.values())) == len(ON_CPU_CASES)
    assert ON_CPU.keys() == {case.family for case in CASES}  # so that a new family's cases are chosen
    assert {name for names in COMPILED.values() for name in names} <= {str(case) for case in ON_CPU_CASES}
    others = {*chain.from_iterable(SAME_OPERATIONS.values())}
    assert {*SAME_OPERATIONS, *others} <= ON_CPU.keys()
    assert not SAME_OPERATIONS.keys() & others
    for table in (EVERY_TENSOR_MATTERS, WALKED):
        assert {(name, case) for name, cases in table.items() for case in cases} <= {
            (case.family, case.name) for case in FLOAT32
        }
        assert table.keys() <= {case.family for case in CASES}


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("case", marked(FLOAT32))
def test_logits(case: Case, write, record_property) -> None:
    record_property("parity", str(family.assert_eager_parity(write(case))))


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize(("case", "target"), list(compiled()))
def test_parity(case: Case, target: str, write, tmp_path: Path, record_property) -> None:
    """A file with BFLOAT16 is compared over a long prompt, at each dtype with its tolerance."""
    long = hasattr(case.module, "BFLOAT16")
    found = (
        parity.assert_parity(write(case).checkpoint, target, tmp_path / "bundle")
        if long
        else family.assert_parity(write(case), target, tmp_path / "bundle")
    )
    record_property("parity", str(found))


@pytest.mark.slow
@pytest.mark.parametrize("case", listed(EVERY_TENSOR_MATTERS), ids=str)
def test_every_tensor_matters(case: Case, write) -> None:
    """Parity would not hold if a tensor were overlooked: a bias taken for 0, a gain for 1, a matrix for another."""
    parity.assert_every_tensor_matters(write(case).reference)


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("name", [each.name for each in FAMILIES if each.name not in WITHOUT_ROPE])
def test_rope_tables_are_dropped(name: str, write) -> None:
    """Real files have the tables of one place."""
    folder = write(next(case for case in FLOAT32 if case.family == name)).checkpoint
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors = {key: tensor.numpy() for key, tensor in load_file(folder / "model.safetensors").items()}
    tables = sorted(rope_tables(name, tensors))
    assert len(tables) >= 6

    def dropped(more: list[str]) -> int:
        stored = tensors | dict.fromkeys(more, np.ones(4, np.float32))
        report = check(open_job(name, checkpoint=dict_checkpoint(stored, config)))
        assert report.ok, report.findings
        return report.counts["dropped"]

    assert dropped(tables) == dropped([]) + len(tables)


@pytest.mark.parametrize(
    "case",
    [case for case in FLOAT32 if case.family not in {*OWN_KEYS, *MORE} and str(case) not in WITHOUT_EXPERTS],
    ids=str,
)
def test_no_key_is_overlooked(case: Case) -> None:
    (kind,) = (each.load("config") for each in FAMILIES if each.name == case.family)
    family.assert_no_key_is_overlooked(kind, case.module.CASES[case.name])


@pytest.mark.slow
@pytest.mark.parametrize("case", listed({name: cases[:1] for name, cases in ON_CPU.items()} | WALKED), ids=str)
def test_keys_walk(case: Case, write) -> None:
    publish = {"publish": case.module.publish} if hasattr(case.module, "publish") else {}
    changed = getattr(case.module, "CHANGED", None)
    print(family.assert_keys_walk(write(case).reference, changed, **publish))
