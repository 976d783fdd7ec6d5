"""The reports with which every format is tested, and the source files that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bringup.diagnostics import Diagnostic, Fix, Report, Severity
from bringup.spec import Site

SOURCES = {
    "adapters/tiny.py": (
        "def adapter(config):\n"
        "    tiny = Adapter('tiny')\n"
        "    tiny['h.{L}.mlp.c_fc.weight'] = S('h.{L}.mlp.c_fc.weight', 'out in')  # as published\n"
        "    tiny['h.{L}.attn.weight'] = cat(\n"
        "        S('h.{L}.q.weight'),\n"
        "        S('h.{L}.k.weight'),\n"
        "    )\n"
        "    tiny['層.{L}.重み'] = S('層.{L}.重み', 'out in')\n"
        "    tiny.drop('h.{L}.mask', why='masks')\n"
    ),
    "graphs/tiny.py": (
        "class MLP(Module):\n"
        "    def __init__(self, config):\n"
        "        self.c_fc = Linear('out:f in:m', f=config.ffn, m=config.hidden)\n"
    ),
}
SHARD = "model-00001-of-00002.safetensors"
COUNTS = {"parameters": 149, "tensors": 160, "consumed": 148, "dropped": 12}
LAYERS = tuple(f"h.{layer}.{part}.weight" for layer in range(12) for part in ("mlp.c_fc", "attn"))
PARAMETERS = ("wte.weight", *LAYERS, "lm_head.weight")


def write_sources(folder: Path) -> None:
    for name, text in SOURCES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def rule(line: int) -> Site:
    return Site(str(Path("adapters/tiny.py").resolve()), line)


def shape() -> Diagnostic:
    """An error with everything that an error can have."""
    return Diagnostic(
        code="BU102",
        message="`h.{0..11}.mlp.c_fc.weight` is [768, 3072], the rule expects [3072, 768], axes `out in`",
        help='it is stored the other way round: write S(…, "in out"); the transpose follows',
        parameter="h.{0..11}.mlp.c_fc.weight",
        sources=tuple(name for name in LAYERS if "mlp" in name),
        expected="[3072, 768]",
        actual="[768, 3072]",
        where=rule(3),
        declared=Site(str(Path("graphs/tiny.py").resolve()), 3),
        file=SHARD,
        tensor="h.0.mlp.c_fc.weight",
        fixes=(Fix(str(Path("adapters/tiny.py").resolve()), 3, 64, "out in", "in out"),),
    )


def unread() -> Diagnostic:
    return Diagnostic(code="BU105", message="no rule reads the tensor `x` [3]", sources=("x",), file=SHARD, tensor="x")


def square() -> Diagnostic:
    return Diagnostic(
        code="BU107",
        severity=Severity.WARNING,
        message="`h.{0..11}.attn.weight` is square",
        help="run `bringup verify`",
        parameter="h.{0..11}.attn.weight",
        where=rule(4),
    )


def many() -> Report:
    untied = Diagnostic(
        code="BU109",
        message="`lm_head.weight` is missing: the config does not tie it",
        help="set tie_word_embeddings to true if the model was trained tied",
        parameter="lm_head.weight",
        sources=("lm_head.weight",),
    )
    missing = Diagnostic(
        code="BU101",
        message="the checkpoint has nothing below `h.{10..11}` (4 tensors)",
        help="the checkpoint ends at h.9, the config expects 11: one of the two is wrong",
        parameter="h.{10..11}",
        where=rule(4),
    )
    key = Diagnostic(code="BU120", severity=Severity.NOTE, message="`pad` is null", parameter="pad")
    return Report("tiny", [key, square(), shape(), untied, missing, unread()], COUNTS, 0.0123, PARAMETERS)


def hostile() -> Report:
    """A tensor's name and a folder's, chosen to break out of each format."""
    name = (
        "a\x1b]0;owned\x07\n::error::b\r\n##[add-mask]c`|<script>alert(1)</script>]]>&amp;"
        "%0A\u202e\ud800\x00[x](javascript:y)--><!-- ```\n# head"
    )
    return Report(
        "ti\x1b[31mny",
        [
            Diagnostic(
                code="BU105",
                message=f"no rule reads the tensor `{name}` [3]",
                help=f'say so in the adapter: drop("{name}", why="…")',
                sources=(name,),
                actual=name,
                file=f"/tmp/{name}",
                tensor=name,
            ),
            Diagnostic(code="BU101", message=f"the checkpoint has no tensor `{name}`", parameter=name, where=rule(9)),
        ],
        COUNTS,
        parameters=PARAMETERS,
    )


def unicode() -> Report:
    finding = Diagnostic(
        code="BU102",
        message="`層.{0..11}.重み` is [3, 4], the rule expects [4, 3] — é, 🙂",
        parameter="層.{0..11}.重み",
        sources=("層.0.重み",),
        where=rule(8),
    )
    return Report("tiny", [finding], COUNTS, parameters=PARAMETERS)


def crowd() -> Report:
    """60 errors and 12 warnings, more than a step of GitHub Actions shows."""
    errors = [
        Diagnostic(code="BU105", message=f"no rule reads the tensor `x{k}.{{0..11}}`", sources=(f"x{k}.0",))
        for k in range(60)
    ]
    warnings = [
        Diagnostic(code="BU114", severity=Severity.WARNING, message=f"`y{k}` differs", parameter=f"y{k}")
        for k in range(12)
    ]
    return Report("tiny", [*warnings, *errors], COUNTS, parameters=PARAMETERS)


def ranks() -> Report:
    clean = Report("tiny", [], COUNTS, 0.0123, PARAMETERS)
    clean.bytes_per_rank = [300_000_000, 300_000_000, 200_000_000]
    return clean


REPORTS: dict[str, Callable[[], Report]] = {
    "clean": lambda: Report("tiny", [], COUNTS, 0.0123, PARAMETERS),
    "one": lambda: Report("tiny", [shape()], COUNTS, 0.0123, PARAMETERS),
    "many": many,
    "warnings": lambda: Report("tiny", [square()], COUNTS, 0.0123, PARAMETERS),
    "hostile": hostile,
    "unicode": unicode,
    "crowd": crowd,
    "ranks": ranks,
    "stopped": lambda: Report("", [Diagnostic(code="BU201", message="there is no checkpoint `x`", help="give one")]),
}
