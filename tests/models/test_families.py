"""What every family shows against transformers, over the CASES of tests/models/test_<family>.py.

Logits without compiling and compiled; that no tensor and no key of config.json is overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bringup.graphs.registry import FAMILIES
from tests.models import family, parity

# Which cases are compiled in `make test`; `make test-full` compiles each of them for both targets.
COMPILED: dict[str, tuple[str, ...]] = {
    "torch": (
        "gpt2-saved", "llama-mistral-window", "bloom-one-head-untied", "gpt_neox-no-biases", "gpt_oss-calm",
        "deepseek_v3-groups-yarn",
    ),
    "cpu": ("gpt2-saved", "internlm-biases", "mixtral-every-expert"),
}  # fmt: skip
MORE = ("gpt_oss_mxfp4", "rare_words")  # files of cases beside the families' own
# The cases in which every tensor matters, where that is not so in each: no token may choose some of the experts.
EVERY_TENSOR_MATTERS = {
    "deepseek_v3": ("groups-yarn",), "deepseek_v32": ("few-keys-yarn",),
    "deepseek_mtp": (), "gpt_oss_mxfp4": (), "llava": (), "mixtral": (), "rare_words": (),
}  # fmt: skip
# The cases whose keys are walked, where they are not all of them; drafts are walked in test_deepseek_mtp_keys.py.
WALKED = {
    "gpt2": ("saved", "original"), "llama": ("one-key-head-biases", "head-dim-llama3", "mistral-window"),
    "deepseek_mtp": (), "gpt_oss_mxfp4": (), "rare_words": (),
}  # fmt: skip
# Their files have a test of their own: their keys are those of another class, or of a config inside the config.
OWN_KEYS = {"exaone", "gpt2", "internlm", "llama", "llava", "qwen"}


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


def listed(table: dict[str, tuple[str, ...]]) -> list[Case]:
    return [case for case in FLOAT32 if case.name in table.get(case.family, (case.name,))]


def compiled() -> Iterator[Any]:
    for case in CASES:
        for target, fast in COMPILED.items():
            marks = () if str(case) in fast else pytest.mark.slow
            yield pytest.param(case, target, id=f"{case}-{target}", marks=marks)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], family.Written]:
    """The checkpoint of a case, written once."""

    @cache
    def once(case: Case) -> family.Written:
        return family.written(case.module, case.name, tmp_path_factory.mktemp(str(case)), case.dtype)

    return once


def test_the_table_names_cases() -> None:
    assert {name for names in COMPILED.values() for name in names} <= {str(case) for case in CASES}
    for table in (EVERY_TENSOR_MATTERS, WALKED):
        assert {(name, case) for name, cases in table.items() for case in cases} <= {
            (case.family, case.name) for case in FLOAT32
        }
        assert table.keys() <= {case.family for case in CASES}


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("case", FLOAT32, ids=str)
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


@pytest.mark.parametrize("case", listed(EVERY_TENSOR_MATTERS), ids=str)
def test_every_tensor_matters(case: Case, write) -> None:
    """Parity would not hold if a tensor were overlooked: a bias taken for 0, a gain for 1, a matrix for another."""
    parity.assert_every_tensor_matters(write(case).reference)


@pytest.mark.parametrize("case", [case for case in FLOAT32 if case.family not in {*OWN_KEYS, *MORE}], ids=str)
def test_no_key_is_overlooked(case: Case) -> None:
    (kind,) = (each.load("config") for each in FAMILIES if each.name == case.family)
    family.assert_no_key_is_overlooked(kind, case.module.CASES[case.name])


@pytest.mark.slow
@pytest.mark.parametrize("case", listed(WALKED), ids=str)
def test_keys_walk(case: Case, write) -> None:
    publish = {"publish": case.module.publish} if hasattr(case.module, "publish") else {}
    changed = getattr(case.module, "CHANGED", None)
    print(family.assert_keys_walk(write(case).reference, changed, **publish))
