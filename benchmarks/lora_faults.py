"""Writes docs/lora-faults.md: what bringup, peft and transformers report for the same faulty adapters.

    python -m benchmarks.lora_faults

The adapter is that of peft for a small random Llama. The mistakes are those of tests/lora/broken.py.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import logging
import platform
import re
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bringup.diagnostics import Diagnostic
from tests.lora.broken import BROKEN, OTHERS, SOUND, Broken, findings
from tests.lora.written import TOKENS, saved_base, write

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/lora-faults.md"
SAME = 1e-5  # logits that differ by less are equal
LINES = 8  # of what a tool printed, at most


@dataclass(frozen=True)
class Outcome:
    """What a tool printed, what it raised, and its logits if it loads."""

    text: str
    error: str = ""
    logits: np.ndarray | None = None

    def verdict(self, base: np.ndarray, sound: np.ndarray | None) -> str:
        """For the table: compared with the base without an adapter, and with the valid adapter."""
        if self.logits is None:
            return f"raises {self.error.partition(':')[0].rpartition('.')[2]}"
        return f"loads {'with a warning' if self.text else 'silently'}; {self._logits(base, sound)}"

    def _logits(self, base: np.ndarray, sound: np.ndarray | None) -> str:
        found = self.logits
        assert found is not None
        if not np.isfinite(found).all():
            return "logits are NaN"
        if found.shape != base.shape:
            return "logits of another vocabulary"
        if np.abs(found - base).max() <= SAME:
            return "the base's logits"
        if sound is None:
            return "other logits than the base's"
        off = float(np.abs(found - sound).max())
        return "the valid adapter's logits" if off <= SAME else f"logits differ by {off:.2g}"

    @property
    def kind(self) -> str:
        """For the counts."""
        return "raises an error" if self.logits is None else "loads with a warning" if self.text else "loads silently"


def of_peft(base: Path, lora: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), str(lora))


def of_base(base: Path, lora: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(base)


def of_transformers(base: Path, lora: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.load_adapter(str(lora))
    return model


def run(load: Callable[[Path, Path], Any], base: Path, lora: Path) -> Outcome:
    """What a tool prints and computes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    loggers = [logging.getLogger(name) for name in ("transformers", "peft", "")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
                logits = load(base, lora).eval()(torch.tensor([TOKENS])).logits[0].numpy()
    except Exception as error:
        return Outcome("", traceback.format_exception_only(error)[-1].strip().replace(f"{lora.parent.parent}/", ""))
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    texts = [str(each.message) for each in caught if each.category is UserWarning]
    text = "\n".join(dict.fromkeys([*texts, *stream.getvalue().splitlines()]))
    return Outcome(_plain(text).replace(f"{lora.parent.parent}/", ""), logits=logits)


def _plain(text: str) -> str:
    """The text without colours, and without lines that are printed for the valid adapter too."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and "Model config" not in line)


def section(broken: Broken, found: list[Diagnostic], outcomes: dict[str, Outcome], place: Path) -> list[str]:
    ours = [f"{each.severity}[{each.code}]: {each.message}\n  = help: {each.help}" for each in found]
    lines = ["", f"## {broken.title}", "", f"bringup (`lora {broken.phase}`):", "", "```text"]
    lines += [text.replace(f"{place}/", "") for text in ours] + ["```"]
    for tool, outcome in outcomes.items():
        printed = (outcome.error or outcome.text).splitlines()
        printed = [*printed[:LINES], f"… ({len(printed) - LINES} lines more)"] if len(printed) > LINES else printed
        lines += [
            "",
            f"{tool}:",
            "",
            *(["```text", *(line[:300] for line in printed), "```"] if printed else ["prints nothing."]),
        ]
    return lines


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    tools = {f"peft {version('peft')}": of_peft, f"transformers {version('transformers')}": of_transformers}
    table: list[str] = []
    sections: list[str] = []
    counts = {tool: Counter[str]() for tool in tools}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        sound = write(SOUND, place)
        sound.base.rename(place / "llama")
        bases = {"llama": place / "llama"}
        for name, case in OTHERS.items():
            saved_base(case, place / name)
            bases[name] = place / name
        plain = {name: run(of_base, folder, folder / "lora") for name, folder in bases.items()}
        for tool, load in tools.items():
            first = run(load, bases["llama"], sound.lora)
            assert first.logits is not None, first.error
            assert np.abs(first.logits - sound.logits).max() <= SAME, tool
            assert not first.text, first.text
        for broken in BROKEN:
            folder = broken.write(sound.lora, place / broken.key / "lora")
            outcomes = {tool: run(load, bases[broken.base], folder) for tool, load in tools.items()}
            base = plain[broken.base].logits
            assert base is not None
            wanted = sound.logits if broken.base == "llama" else None
            verdicts = [outcome.verdict(base, wanted) for outcome in outcomes.values()]
            for tool, outcome in outcomes.items():
                counts[tool][outcome.kind] += 1
            found = findings(broken, bases[broken.base], folder)
            assert [each.code for each in found] == [broken.code], found
            anchor = re.sub(r"[^a-z0-9_ -]", "", broken.title.lower()).replace(" ", "-")
            table.append(f"| [{broken.title}](#{anchor}) | {broken.code} ({broken.phase}) | {' | '.join(verdicts)} |")
            sections += section(broken, found, outcomes, place)
    kinds = ("raises an error", "loads with a warning", "loads silently")
    lines = [
        f"# {len(BROKEN)} broken adapters, and the tools that report them",
        "",
        f"bringup reports each of {len(BROKEN)} with one diagnostic and loads none. The other tools:",
        "",
        f"| | {' | '.join(tools)} |",
        "|---|" + "---|" * len(tools),
        *(f"| {kind} | {' | '.join(str(counts[tool][kind]) for tool in tools)} |" for kind in kinds),
        "",
        "Each tool loads the same folder: `bringup lora check` (or `merge`, if only values show the mistake), peft's",
        "`PeftModel.from_pretrained` and transformers' `load_adapter`, the last two with one forward pass.",
        "`logits differ by` is the largest difference from the logits of the valid adapter, over "
        f"{len(TOKENS)} tokens;",
        f"below {SAME:g} they count as equal. `the base's logits`: the adapter was loaded without effect.",
        "",
        f"Written on {datetime.date.today()} by `python -m benchmarks.lora_faults`, with bringup",
        f"{version('bringup')}, {', '.join(tools)}, torch {version('torch')},",
        f"Python {platform.python_version()}, on CPU. The mistakes are the table of tests/lora/broken.py; its tests",
        "compare the column of bringup on this page with what bringup reports.",
        "",
        f"| mistake | bringup | {' | '.join(tools)} |",
        "|---|---|" + "---|" * len(tools),
        *table,
        *sections,
    ]
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
