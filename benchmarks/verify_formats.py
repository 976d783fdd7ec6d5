"""`bringup verify` of tiny checkpoints in each quantised format: writes the table of docs/verify.md.

    python -m benchmarks.verify_formats [--saved FILE [--measured]] [--only FORMAT]…

For each format a dense model and one with experts are written, as the tests of the schemes write them, and verified in
float32 and bfloat16 on `cpu` and `torch`. The reference is transformers on the same checkpoint. If it has none (BU703),
it is transformers on the same weights as floats: `verify` saves its activations, and compares with the file. FILE has
the results so far, so that an interrupted run resumes; with --measured the table is written from these alone. No speed
is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers

from bringup.compile.job import open_job
from bringup.compile.parity.parity import Parity
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS as OTHERS
from tests.quantised.int4_formats import FORMATS as OF_WORDS

PAGE = Path(__file__).resolve().parent.parent / "docs/verify.md"
BEGIN, END = "<!-- benchmarks.verify_formats -->\n", "<!-- end -->\n"
FORMATS: Mapping[str, str] = {
    "fp8-inv": "fp8 in blocks",
    "ct-int8": "compressed-tensors int8, rows",
    "ct-fp8-rows": "compressed-tensors fp8, rows",
    "ct-int4": "compressed-tensors int4, groups of 32",
    "ct-mxfp4": "compressed-tensors MXFP4",
    "ct-nvfp4": "compressed-tensors NVFP4",
    "modelopt-fp8": "ModelOpt FP8",
    "modelopt-nvfp4": "ModelOpt NVFP4",
    "quark-mxfp4": "Quark MXFP4",
    "fbgemm": "FBGEMM fp8",
    "awq": "AWQ int4, groups of 32",
    "gptq": "GPTQ int4, groups of 32",
    "auto-round": "AutoRound int4, groups of 32",
    "int8": "bitsandbytes int8",
    "nf4": "bitsandbytes NF4",
}
HEAD = """Written on {date} by `python -m benchmarks.verify_formats` with transformers {version}, for tiny models of
random weights: Llama; with experts Qwen3-MoE or Mixtral. A cell is the largest error of a row of logits as a fraction
of the bound, so that 1 is the bound; bold is a disagreement, or an error of `verify`. ᶠ: transformers has no reference
for the format (BU703), so that the reference is transformers on the same weights as floats, in float32. What the table
does not list is not measured.

"""
KINDS, DTYPES, TARGETS = ("experts", "dense"), ("bfloat16", "float32"), ("cpu", "torch")
Found = dict[str, str]  # the result of a cell, by format, kind, dtype and target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saved", type=Path, metavar="FILE", help="results so far, as JSON")
    parser.add_argument("--only", action="append", choices=[*FORMATS], metavar="FORMAT", help="measure these formats")
    parser.add_argument("--measured", action="store_true", help="verify nothing: write the results of --saved")
    options = parser.parse_args()
    found: Found = json.loads(options.saved.read_text("utf-8")) if options.saved and options.saved.exists() else {}
    for kind, dtype, name in () if options.measured else product(KINDS, DTYPES, options.only or FORMATS):
        cells = {_key(name, kind, dtype, target): target for target in TARGETS}
        if cells.keys() <= found.keys():
            continue
        for target, result in _results(name, kind, dtype).items():
            found[_key(name, kind, dtype, target)] = result
            print(name, kind, dtype, target, result, flush=True)
        if options.saved:
            options.saved.write_text(json.dumps(found, indent=1), "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(found)}{END}{rest.partition(END)[2]}", "utf-8")


def _key(*words: str) -> str:
    return " / ".join(words)


def _results(name: str, kind: str, dtype: str) -> dict[str, str]:
    """The result of one checkpoint and dtype on each target."""
    of_words = name in OF_WORDS
    base = {"dense": "llama", "experts": "mixtral" if of_words else "qwen3_moe"}[kind] + (
        " of words" if of_words else ""
    )
    with TemporaryDirectory(prefix="bringup-bench-") as folder:
        stored, floats = write(base, (OF_WORDS if of_words else OTHERS)[name], Path(folder))
        return {target: _verified(stored, floats, dtype, target) for target in TARGETS}


def _verified(stored: Path, floats: Path, dtype: str, target: str) -> str:
    try:
        return _cell(verify(open_job(checkpoint=str(stored), dtype=dtype), target=target))
    except BringupError as error:
        if error.findings[0].code != "BU703":
            return f"**{error.findings[0].code}**"
    file = floats.with_name("reference.safetensors")
    try:
        if not file.is_file():
            verify(open_job(checkpoint=str(floats), dtype="float32"), target="torch", save=file)
        job = open_job(checkpoint=str(stored), dtype=dtype)
        return f"{_cell(verify(job, target=target, against=file))} ᶠ"
    except BringupError as error:
        return f"**{error.findings[0].code}** ᶠ"


def _cell(parity: Parity) -> str:
    """The largest error as a fraction of the bound; bold, with the codes, if the two do not agree."""
    excess = f"{max(each.excess for each in parity.differences):.2f}"
    return excess if parity.ok else f"**{excess}: {', '.join(dict.fromkeys(each.code for each in parity.findings))}**"


def table(found: Found) -> str:
    """Markdown: a row for each format, a column for each kind, dtype and target; those without results are left out."""
    every: Sequence[tuple[str, str, str]] = [*product(("dense", "experts"), ("float32", "bfloat16"), TARGETS)]
    columns = [column for column in every if any(_key(name, *column) in found for name in FORMATS)]
    rows = [
        f"| {label} | " + " | ".join(found.get(_key(name, *column), "") for column in columns) + " |"
        for name, label in FORMATS.items()
        if any(_key(name, *column) in found for column in columns)
    ]
    heads = " | ".join(f"{kind}, {dtype}, `{target}`" for kind, dtype, target in columns)
    text = HEAD.format(date=date.today(), version=transformers.__version__)
    return "\n".join([f"{text}| format | {heads} |", "|---|" + "--:|" * len(columns), *rows]) + "\n"


if __name__ == "__main__":
    main()
