"""Sigmoid routing that transformers' code computes as `SigmoidRouter` does is drafted; other routing is a question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import draft
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of
from bringup.compile.draft.modelling.routing import Routing
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import SIZES, assert_complete, drafted_with
from tests.models import parity

GROUPS = {
    "n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 8,
}  # fmt: skip
# By name: the model type and its keys.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("glm4_moe", {**GROUPS, "routed_scaling_factor": 2.5}),
    "weights as they are": ("dots1", {**GROUPS, "norm_topk_prob": False}),
    "all layers": ("solar_open", GROUPS),
    "other keys": ("exaone_moe", {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "num_shared_experts": 2,
        "n_group": 4, "topk_group": 2, "sliding_window": 32, "num_hidden_layers": 4,
    }),
    # Names of the checkpoint for which `conversion_mapping.py` has those of the modules.
    "renamed bias and shared expert": ("hy_v3", {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8,
        "first_k_dense_replace": 1,
    }),
    "renamed bias and norms, q, k and v in one": ("sarvam_moe", GROUPS),
}  # fmt: skip
QUESTION = "transformers' router computes sigmoid scores"


@pytest.mark.parametrize("name", CASES)
def test_no_question_remains(name: str, tmp_path: Path) -> None:
    found, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_complete(found)
    assert "config.routing)" in found.files[f"{found.name}_graph.py"]
    assert (
        'mlp.gate.e_score_correction_bias"] = S("blk.{L}.exp_probs_b.bias")' in found.files[f"{found.name}_dialect.py"]
    )
    assert_fits(model, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    _, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_same_logits(model, source)


def test_routing_without_groups(tmp_path: Path) -> None:
    """MiniMax M2: weights always add up to 1, no key for groups or a factor."""
    keys = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 4}
    source = parity.save_checkpoint(CONFIG_MAPPING["minimax_m2"](**SIZES | keys), tmp_path)
    found = draft(open_checkpoint(source, headers_only=True))
    assert found.open == 0
    assert "groups=1, topk_groups=1, normalise=True, factor=1.0" in found.files["minimax_m2_graph.py"]
    assert not any(each.text.startswith("transformers'") for each in found.questions)


def test_without_the_bias_routing_is_a_question(tmp_path: Path) -> None:
    _, _, source = drafted_with(*CASES["all layers"][:2], tmp_path)
    tensors = load_file(source / "model.safetensors")
    rest = {name: array for name, array in tensors.items() if not name.endswith("correction_bias")}
    save_file(rest, source / "model.safetensors")
    found = draft(open_checkpoint(source, headers_only=True))
    assert any(each.text.startswith(QUESTION) for each in found.questions)


CODE = """
class NewRouter:
    def __init__(self, config):
        self.hidden_dim = config.hidden_size
        self.top_k = config.top_k

    def forward(self, x):
        x = x.view(-1, self.hidden_dim)
        logits = F.linear(x.float(), self.weight.float())
        scores = logits.sigmoid()
        by = scores + self.route_bias
        GROUPS
        chosen = torch.topk(by, k=self.top_k, dim=-1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        if config.norm:
            total = weights.sum(dim=-1, keepdim=True) + 1e-20
            weights /= total
        weights = weights * config.factor
        return logits, weights, chosen


class NewMoe:
    def __init__(self, config):
        self.gate = NewRouter(config)

    def forward(self, x):
        _, weights, chosen = self.gate(x)
        return self.experts(x, chosen, weights)


class NewForCausalLM:
    def __init__(self, config):
        self.mlp = NewMoe(config)
"""
BEST = """group = by.view(-1, config.groups, config.count // config.groups).topk(2, dim=-1)[0].sum(dim=-1)
        best = torch.topk(group, k=config.topk, dim=-1, sorted=False)[1]
        mask = torch.zeros_like(group)
        mask.scatter_(1, best, 1)
        all = mask.unsqueeze(-1).expand(-1, config.groups, config.count // config.groups).reshape(-1, config.count)
        by = by.masked_fill(~all.bool(), float('-inf'))"""
WHOLE = CODE.replace("GROUPS", BEST)
ROUTING = Routing("route_bias", "top_k", "groups", "topk", "norm", always=False, factor="factor")


def routing(folder: Path, code: str) -> tuple[Routing | None, dict[str, list[str]]]:
    (folder / "modeling_new.py").write_text(code)
    meaning = meaning_of(parts_of(folder / "modeling_new.py", "NewForCausalLM", {"norm": False}))
    return meaning.routing, meaning.unexplained


@pytest.mark.parametrize(
    ("old", "new", "known"),
    [
        ("", "", ROUTING),
        ("logits.sigmoid()", "torch.sigmoid(logits)", ROUTING),
        ("chosen", "top", ROUTING),
        (BEST, "pass", Routing("route_bias", "top_k", "", "", "norm", always=False, factor="factor")),
        ("weights = weights * config.factor", "pass",
         Routing("route_bias", "top_k", "groups", "topk", "norm", always=False, factor="")),
        ("        if config.norm:\n    ", "        if True:\n    ", replace(ROUTING, normalise="", always=True)),
        ("logits.sigmoid()", "logits.softmax(-1)", None),
        ("scores.gather(1, chosen)", "by.gather(1, chosen)", None),  # weights with the bias
        ("topk(2, dim=-1)", "topk(1, dim=-1)", None),
        ("float('-inf')", "0.0", None),
        ("total = weights.sum(dim=-1, keepdim=True) + 1e-20\n            weights /= total",
         "weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)", ROUTING),
        ("        weights = weights * config.factor", "            weights = weights * config.factor", None),
        ("            weights /= total", "            weights /= total\n        else:\n            weights *= 2", None),
        ("1e-20", "1e-6", None),
        ("if config.norm:", "if config.norm and config.top_k:", None),
        ("weights * config.factor", "weights * config.factor + 1", None),
        ("self.experts(x, chosen, weights)", "self.experts(x, chosen, weights ** 2)", None),
        ("return logits, weights, chosen", "return logits, chosen, weights", None),
        ("_, weights, chosen = self.gate(x)", "_, chosen, weights = self.gate(x)", None),
        ("x = x.view(-1, self.hidden_dim)", "x = x * 2", None),
    ],
)  # fmt: skip
def test_the_same_steps(old: str, new: str, known: Routing | None, tmp_path: Path) -> None:
    """Other names are the same routing; another step is not, and is a question."""
    assert WHOLE.count(old)
    found, rest = routing(tmp_path, WHOLE.replace(old, new))
    assert found == known
    assert bool(rest) is (known is None)
