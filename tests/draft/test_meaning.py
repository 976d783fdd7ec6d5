"""What transformers' code computes and tensors do not show is drafted, or a question: factors, norms, rope, windows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import Draft, draft
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import drafted, save, save_with

# By kind: words of the drafted graph, without which its logits would be others.
WRITTEN = {
    "granite": ("residual=config.residual_scale", "embedding_scale", "query_scale", "/ self.config.logit_scale"),
    "granitemoe": ("residual=config.residual_scale", "normalise=True"),
    "gemma": ('common["hidden"] ** 0.5', "norm = OnePlusRMSNorm"),
    "glm": ('norms="before"',),
    "glm4": ('norms="around"',),
    "hunyuan_v1_dense": ("The norms of queries and keys come after rope",),
    "smollm3": ("attention.rotates = config.rotated[index]", 'fields.indices("no_rope_layers")', "if used else None"),
    "exaone4": ("window is not None or not any(windows)", 'norms="after"'),
    "cohere2": ("window is not None for window in windows", "norm = ScaleNorm", "ParallelLayer("),
    "olmo3": ("local_theta=", "rope=int("),
    "cohere": ("* self.config.logit_scale", "ParallelLayer("),
    "flex_olmo": ('norms="after"',),
    "arcee": (" MLP(", 'activation="relu2"'),
}  # fmt: skip


def drafted_kind(kind: str, folder: Path) -> tuple[Draft, Path, Path]:
    source = save(kind, folder / kind)
    return *drafted(source, folder / "draft"), source


@pytest.mark.parametrize("kind", WRITTEN)
def test_no_question_remains(kind: str, tmp_path: Path) -> None:
    found, model, source = drafted_kind(kind, tmp_path)
    assert [each.text for each in found.questions if not _harmless(each.text)] == []
    text = found.files[f"{kind}_graph.py"]
    for word in WRITTEN[kind]:
        assert word in text
    assert_fits(model, source)
    for name in (f"{kind}_graph.py", f"{kind}_adapter.py"):
        lines = [line for line in found.files[name].splitlines() if not line.lstrip().startswith("#")]
        assert max(map(len, lines)) <= 140, name


def _harmless(text: str) -> bool:
    """Questions on GGUF files, and on values that this checkpoint does not have."""
    return text.startswith("GGUF") or text.endswith("write what they change")


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITTEN)
def test_logits(kind: str, tmp_path: Path) -> None:
    _, model, source = drafted_kind(kind, tmp_path)
    assert_same_logits(model, source)


def test_what_the_parts_lack_is_a_question(tmp_path: Path) -> None:
    """The router of Phi-3.5-MoE masks scores by their distance from the largest."""
    found, _, _ = drafted_kind("phimoe", tmp_path)
    (text,) = [each.text for each in found.questions if each.text.startswith("transformers' sparsemixer computes")]
    assert "factor = scores.abs().clamp(min=mask_logits_threshold)" in text
    before, _, _ = found.files["phimoe_graph.py"].partition("sparsemixer computes")
    assert "def layer(self" in before
    assert "jitter_eps=config.router_jitter_noise" in before, "this key is of training in other families alone"


def test_the_statements_of_a_question(tmp_path: Path) -> None:
    """A key that is not read, with the lines of transformers that do."""
    source = save_with("granite_swa", {"layer_rope_theta": [1e4, 5e5]}, tmp_path / "granite")
    found = draft(open_checkpoint(source, headers_only=True))
    lines = found.files["granite_swa_graph.py"].splitlines()
    at = next(index for index, line in enumerate(lines) if "`layer_rope_theta` is [" in line)
    assert "transformers: theta = config.layer_rope_theta[i]" in lines[at + 1]
    assert "            sinks=True," in lines  # a factor of the result in transformers
    assert not any("sink" in question.text for question in found.questions)


CODE = """
class NewAttention:
    def __init__(self, config, layer_idx):
        self.scaling = {scaling}
        self.factor = config.factor

    def forward(self, hidden_states, position_embeddings):
        query_states = self.q_proj(hidden_states)
        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        if self.factor is not None:
            query_states = query_states * self.factor
        attn_output, _ = attention_interface(self, query_states, key_states, value_states, None, scaling=self.scaling)
        return self.o_proj(attn_output)


class NewForCausalLM:
    def __init__(self, config):
        self.attention = NewAttention(config, 0)

    def forward(self, input_ids):
        return self.attention(input_ids)
"""


@pytest.mark.parametrize(
    ("scaling", "factor", "rest", "factors"),
    [
        ("self.head_dim ** -0.5", None, [], {}),
        ("self.head_dim ** -0.5", 2.0, ["query_states = query_states * config.factor"], {}),
        ("config.scale", None, [], {"scores": "scale"}),
        ("config.scale ** -0.5", None, [], {"scores root": "scale"}),
        ("config.scale * 2", None, ["self.scaling = config.scale * 2"], {}),
    ],
)
def test_a_statement_is_explained_or_a_question(
    scaling: str, factor: float | None, rest: list[str], factors: dict[str, str], tmp_path: Path
) -> None:
    """Branches that the config excludes are left out; arithmetic that no part has is not."""
    file = tmp_path / "modeling_new.py"
    file.write_text(CODE.format(scaling=scaling))
    meaning = meaning_of(parts_of(file, "NewForCausalLM", {"factor": factor}))
    assert meaning.unexplained.get("Attention", []) == rest
    assert meaning.factors == factors


def test_an_architecture_that_the_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "modeling_new.py").write_text(CODE.format(scaling="1"))
    assert parts_of(tmp_path / "modeling_new.py", "OtherForCausalLM", {}) == {}


@pytest.mark.parametrize(
    ("norm", "other", "expected"),
    [
        ("LayerNorm(8)", "nn.Linear(8, 8)", True),
        ("nn.LayerNorm(8, eps=1e-6)", "nn.LayerNorm(8)", True),
        ("LayerNorm(8)", "nn.RMSNorm(8)", False),
        ("NewLayerNorm(8)", "nn.Linear(8, 8)", False),
        ("nn.Linear(8, 8)", "nn.Linear(8, 8)", False),
    ],
)
def test_norms_of_torch(norm: str, other: str, expected: bool, tmp_path: Path) -> None:
    """A class of the file may have the same name as torch's."""
    file = tmp_path / "modeling_new.py"
    text = CODE.format(scaling="1").replace("self.attention = ", f"self.norm = {norm}\n        self.other = {other}\n"
                                            "        self.attention = ")  # fmt: skip
    file.write_text(text + "\n\nclass NewLayerNorm:\n    def __init__(self, size):\n        pass\n")
    assert meaning_of(parts_of(file, "NewForCausalLM", {"factor": None})).layer_norms is expected


@pytest.mark.parametrize(
    ("thetas", "code"),
    [([1e4, 5e5], "BU122"), ([1e4], "BU122"), ([1e4, "0"], "BU121"), ([-1.0, 0], "BU121"), (None, ""), ([0, 0], "")],
)
def test_other_thetas_than_those_of_the_checkpoint(thetas: object, code: str, tmp_path: Path) -> None:
    source = save_with("granite_swa", {"layer_rope_theta": [0, 1e4]}, tmp_path / "granite")
    _, model = drafted(source, tmp_path / "draft")
    config = json.loads((source / "config.json").read_text("utf-8")) | {"layer_rope_theta": thetas}
    report = check(open_job(model, str(source), config=config))
    assert [finding.code for finding in report.findings] == [code] * bool(code)
