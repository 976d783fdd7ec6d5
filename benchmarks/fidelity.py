"""Writes docs/fidelity.md and graphs/fidelity.json: the errors of each family's logits compared with transformers.

    python -m benchmarks.fidelity [--target TARGET] [FAMILY …]

It measures prefill and decode of every tiny configuration of tests/models/test_FAMILY.py, saved by transformers, in
float32 and bfloat16. Figures of families and targets that are not named are unchanged.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from bringup.graphs.registry import FAMILIES, FIDELITY
from tests.models import family as shown
from tests.models import parity

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/fidelity.md"
DTYPES = ("float32", "bfloat16")
TARGETS = ("torch", "cpu", "iree-cpu")
Figures = dict[str, float | str]
HEAD = f"""# Fidelity

Written by `python -m benchmarks.fidelity`. The figures are the largest absolute difference of a logit from
transformers, divided by the largest absolute logit of transformers, over all tiny configurations of a family's tests:
{shown.PROMPT} tokens at once (prefill), then {shown.STEPS} one by one (decode). transformers runs its own forward with
its cache, with the same weights and dtype. For a draft model, the reference is transformers' decoder layer with the
parts that a draft adds; for EAGLE-3 heads, the published formulas in torch (`tests/models/heads.py`). transformers has
no code for EXAONE 3, InternLM 1 and Qwen 1: their reference is transformers' Llama or Qwen2, with the weights under the
published names (`tests/models/published_tensors.json`).

- **float32**: the tolerance is {shown.WORST["torch"]:.0e} on `torch`, {shown.WORST["cpu"]:.0e} on `cpu` and
  {shown.WORST["iree-cpu"]:.0e} on `iree-cpu`: the same sums are computed in another order.
- **bfloat16** rounds every activation to 8 significant bits, and the two implementations round at different points:
  inside an operation, bringup keeps scores, softmax, norms and activations in float32. The last column is the
  difference between transformers' own bfloat16 and its float32; a difference of that size shows an error in neither.
  If the scores of a router are close, rounding sends a token to another expert, and its logits are then those of a
  different function. So the third figure matters most. It is the root mean square error of a row of bringup's bfloat16
  logits against the exact logits (transformers at float32, the same weights), divided by that of transformers'
  bfloat16 logits; the median over rows. 1 means that bringup is as accurate as transformers.

"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    given = parser.parse_args()
    by_model: dict[str, Figures] = json.loads(FIDELITY.read_text("utf-8")) if FIDELITY.exists() else {}
    for name in given.families or [family.name for family in FAMILIES]:
        print(name, flush=True)
        targets = [given.target] if given.target else TARGETS
        others = {key: value for key, value in by_model.get(name, {}).items() if key.split()[1] not in targets}
        by_model[name] = in_order(others | figures(name, targets))
        FIDELITY.write_text(json.dumps(dict(sorted(by_model.items())), indent=1) + "\n", "utf-8")
    PAGE.write_text(HEAD + "\n".join(rows(dict(sorted(by_model.items())))) + "\n", "utf-8")


def in_order(found: Figures) -> Figures:
    """By dtype, then by target."""
    columns = [f"{dtype} {target}" for dtype in DTYPES for target in ("transformers", *TARGETS)]
    rank = {"transformers bfloat16": columns.index("bfloat16 transformers")}
    rank |= {key: columns.index(" ".join(key.split()[:2])) for key in found if key not in rank}
    return dict(sorted(found.items(), key=lambda item: rank[item[0]]))


def figures(name: str, targets: Sequence[str]) -> Figures:
    """The worst of a family's configurations, by dtype, target and phase; or why there is none."""
    module = import_module(f"tests.models.test_{name}")
    worst: Figures = {}
    ratios: dict[str, list[float]] = {}
    for case, dtype in product(module.CASES, DTYPES):
        with tempfile.TemporaryDirectory() as folder:
            for key, value in measured(shown.written(module, case, Path(folder, case), dtype), dtype, targets):
                if isinstance(value, list):
                    ratios.setdefault(key, []).extend(value)
                else:
                    known = worst.get(key, 0.0)
                    worst[key] = value if isinstance(value, str) or isinstance(known, str) else max(value, known)
    return worst | {key: float(np.median(values)) for key, values in ratios.items()}


def measured(
    case: shown.Written, dtype: str, targets: Sequence[str]
) -> Iterator[tuple[str, float | str | list[float]]]:
    tokens, theirs = case.theirs()
    exact = None
    if dtype == "bfloat16":
        _, exact = case.theirs("float32")
        yield "transformers bfloat16", far(theirs, exact)
    for target in targets:
        key = f"{dtype} {target}"
        try:
            ours = logits(case, tokens, target)
        except BringupError as refusal:
            yield key, refusal.findings[0].code
            continue
        yield f"{key} prefill", far(ours[: shown.PROMPT], theirs[: shown.PROMPT])
        yield f"{key} decode", far(ours[shown.PROMPT :], theirs[shown.PROMPT :])
        if exact is not None:
            yield f"{key} ratio", (of_rows(ours, exact) / of_rows(theirs, exact)).tolist()


def logits(case: shown.Written, tokens: list[int], target: str) -> np.ndarray:
    job = open_job(case.model, str(case.checkpoint))
    with tempfile.TemporaryDirectory() as folder:
        settings: Any = {"max_seq_len": len(tokens), "buckets": (shown.PROMPT,), "all_logits": True}
        bundle = build(job, out=Path(folder, "b"), target=target, **settings)
        return parity.run(load(bundle), tokens, shown.PROMPT, **case.inputs)


def far(ours: np.ndarray, theirs: np.ndarray) -> float:
    ours, theirs = parity.of_drafted(ours, theirs)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def of_rows(logits: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Root mean square of each row's differences."""
    logits, exact = parity.of_drafted(logits, exact)
    return np.sqrt(np.square(logits - exact).mean(-1))


def rows(by_model: dict[str, Figures]) -> Iterator[str]:
    columns = [f"{dtype} {target}" for dtype in DTYPES for target in TARGETS]
    yield f"| family | {' | '.join(columns)} | transformers' bfloat16 |"
    yield "|---|" + "---|" * (len(columns) + 1)
    for name, found in by_model.items():
        cells = [cell(found, column) for column in columns]
        yield f"| {name} | {' | '.join(cells)} | {found['transformers bfloat16']:.0e} |"


def cell(found: Figures, column: str) -> str:
    """Prefill and decode, or the code of what refused; nothing where it was not measured."""
    if column in found:
        return f"[{found[column]}](targets.md)"
    if f"{column} prefill" not in found:
        return ""
    said = f"{found[column + ' prefill']:.0e}, {found[column + ' decode']:.0e}"
    ratio = found.get(f"{column} ratio")
    return said if ratio is None else f"{said}, {ratio:.2f}"


if __name__ == "__main__":
    main()
