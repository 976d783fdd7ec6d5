"""`bringup explain`, from every side; and the pages of the codes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bringup import guides
from bringup.codes import FOLDER, titles
from tests.cli.conftest import Bringup
from tests.cli.headers import write_gguf

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("adapters/**/*.py"), *ROOT.glob("compile/**/*.py"), *ROOT.glob("graphs/**/*.py")]
SOURCES += [
    *ROOT.glob("bringup/*.py"),
    *(file for name in ("cli", "render", "system") for file in ROOT.glob(f"bringup/{name}/**/*.py")),
]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    used = {code for path in SOURCES for code in re.findall(r'"(BU\d{3})"', path.read_text("utf-8"))}
    assert used == set(titles())


@pytest.mark.parametrize("code", sorted(titles()))
def test_a_page_has_all_its_parts(code: str) -> None:
    text = (FOLDER / f"{code}.md").read_text("utf-8")
    assert re.match(rf"# {code} [a-z0-9]+(-[a-z0-9]+)*\n\n", text)
    why, example, fix = (text.index(part) for part in ("**Why it matters.**", "**Example**\n\n```", "**Fix.**"))
    assert why < example < fix
    header = re.compile(rf"(error|warning|note)\[{code}\]: |BringupError: {code}: ")
    assert re.search(r"^```console\n\$ ", text[example:fix], re.MULTILINE)
    assert header.search(text[example:fix]), "the first line of what bringup says"


def test_names_of_codes_are_unique() -> None:
    assert len(set(titles().values())) == len(titles())


@pytest.mark.parametrize("subject", ["BU102", "bu102", "shape-mismatch"])
def test_a_code(bringup: Bringup, subject: str) -> None:
    result = bringup("explain", subject)
    assert (result.exit_code, result.output) == (0, (FOLDER / "BU102.md").read_text("utf-8"))


@pytest.mark.parametrize("subject", ["lora", "lora.md", "docs/lora.md"])
def test_a_page_of_the_documentation(bringup: Bringup, subject: str) -> None:
    assert bringup("explain", subject).output == (ROOT / "docs/lora.md").read_text("utf-8")


def test_help_lists_every_page(bringup: Bringup) -> None:
    listed = " ".join(bringup("explain", "--help").output.split()).partition("is printed: ")[2].partition(".")[0]
    assert listed.split(", ") == guides.names() == sorted(path.stem for path in ROOT.glob("docs/*.md"))


def test_messages_name_pages_that_are_installed() -> None:
    """A wheel has no folder docs/: messages and the pages of codes name the command that prints a page."""
    texts = {path: path.read_text("utf-8") for path in (*SOURCES, *FOLDER.glob("BU*.md"))}
    strings = {path: text if path.suffix == ".md" else "\n".join(_strings(text)) for path, text in texts.items()}
    assert [path for path, text in strings.items() if re.search(r"\bdocs/[\w-]+\.md", text)] == []
    named = {name for text in strings.values() for name in re.findall(r"`bringup\s+explain\s+([a-z][\w-]*)`", text)}
    assert "adding-a-model" in named
    assert named <= {*guides.names(), *titles().values()}


def _strings(text: str) -> list[str]:
    """The texts in a source file that are no docstring of a module or of a function that is no command."""
    tree = ast.parse(text)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    held = (node for node in ast.walk(tree) if isinstance(node, kinds) and not getattr(node, "decorator_list", ()))
    first = {id(node.body[0].value) for node in held if node.body and isinstance(node.body[0], ast.Expr)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in first)
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_a_parameter(bringup: Bringup, small: Path) -> None:
    result = bringup("explain", "transformer.h.1.attn.c_attn.weight", "--checkpoint", small)
    assert result.exit_code == 0
    for line in (
        "parameter transformer.h.1.attn.c_attn.weight",
        "  declared      out:(t h d) in:m  [384, 128]  float32",
        "  reads         h.1.attn.c_attn.weight  [128, 384]  float32  in model.safetensors",
        "  axes          h.1.attn.c_attn.weight: in out → out:(t h d) in:m",
        "  copies        384 times (source +1, result +128): 128 elements, 384 apart in the source, transposed",
        "  dtype         float32, as stored",
        "  also read by  nothing else",
    ):
        assert f"{line}\n" in result.output
    line = "transformer.h.1.attn.c_attn.weight  out:(t h d) in:m  [384, 128]  of `h.1.attn.c_attn.weight`\n"
    for module in ("transformer.h.1.attn.c_attn", "transformer.h.1"):
        assert line in bringup("explain", module, "--checkpoint", small).output
    assert re.search(r'  rule +transformer\.h.*\n +adapters/gpt2\.py:\d+  gpt2\["transformer\.h', result.output)


def test_a_tied_parameter_names_who_shares_its_tensor(bringup: Bringup, small: Path) -> None:
    head = bringup("explain", "lm_head.weight", "gpt2", "--checkpoint", small).output
    assert "reads         wte.weight  [96, 128]" in head
    assert "axes          wte.weight: vocab m → out:vocab in:m\n" in head
    assert "also read by  transformer.wte.weight (as stored)\n" in head


def test_tensors(bringup: Bringup, small: Path, broken: Path) -> None:
    def explained(name: str, folder: Path) -> str:
        return bringup("explain", name, "--checkpoint", folder).output

    both = explained("wte.weight", small)
    assert "  read by   transformer.wte.weight (as stored)\n            lm_head.weight (as stored)\n" in both
    assert "  coverage  whole\n" in both
    assert "  dropped  causal-mask buffers  (`h.{L}.attn.{b:bias|masked_bias}`)\n" in explained("h.0.attn.bias", small)
    assert "  read by  nothing: `bringup check` reports BU105\n" in explained("extra", broken)
    turned = explained("h.0.attn.c_attn.weight", broken)
    assert "which cannot be computed" in turned
    assert "not computed  BU102: `h.0.attn.c_attn.weight`, should be in out, is [384, 128]" in turned


def test_dtypes(small: Path) -> None:
    from bringup.compile.job import open_job
    from bringup.compile.report.describe import dtypes

    plan = open_job(None, str(small), dtype="bfloat16").plan
    assert list(dtypes(plan.entries["lm_head.weight"])) == ["float32 → bfloat16, rounded to nearest even"]


def test_a_parameter_of_another_format(bringup: Bringup, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    output = bringup("explain", "model.layers.0.self_attn.k_proj.weight", "--checkpoint", path).output
    assert "  reads         blk.0.attn_k.weight  [32, 64]  float32  in tiny.gguf\n" in output
    assert re.search(r"  rule .*\n +adapters/dialects/llama\.py:\d+  gguf\[", output)
    assert "  axes          blk.0.attn_k.weight: (g pair two) m → out:(g d) in:m\n" in output
    head = bringup("explain", "lm_head.weight", "--checkpoint", path).output
    assert "  computed      dequantise q8_0, returns [96, 64] float32 (not exact)\n" in head


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "BU120x"], "did you mean `BU120`?"),
        (["explain", "BU999"], "unknown code `BU999`"),
        (["explain", "quantization"], "did you mean `quantisation`?"),
        (["explain", "shape-mismach"], "did you mean `shape-mismatch`?"),
        (["explain", "wte.weight"], "bringup explain wte.weight MODEL"),
        (["explain", "wte.wieght", "gpt2", "--checkpoint", "dummy"], "did you mean `wte.weight`?"),
    ],
)
def test_what_is_unknown_is_exit_2(bringup: Bringup, words: list[str], said: str) -> None:
    result = bringup(*words)
    assert result.exit_code == 2
    assert said in result.output
