"""The order of q, k and v that the reader finds in transformers' statements, against torch, which runs them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bringup.compile.draft.modelling.order import order_of
from bringup.compile.draft.modelling.parts import parts_of
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import assert_complete, drafted
from tests.models import parity

H, D = 8, 4
CONFIG: dict[str, Any] = {"hidden_size": H * D, "num_attention_heads": H, "wide": True, "attn": {"clip": None}}
VIEWS = "q, k, v = [y.view(1, -1, self.h, self.d) for y in (q, k, v)]"
# By name: the number of key heads, and statements that split `x`, the product of the fused matrix.
SPLITS: dict[str, tuple[int, str]] = {
    "chunks": (8, "q, k, v = x.chunk(3, dim=2)\nq, k, v = [y.view(1, -1, self.h, self.d) for y in (q, k, v)]"),
    "split, another order": (8, "q, v, k = x.split(self.h * self.d, dim=-1)\n"
                             "q, k, v = [y.reshape(*x.shape[:-1], -1, self.d) for y in (q, k, v)]"),
    "blocks": (8, "local = self.h * self.d // 4\nq, v, k = x.view(*x.shape[:2], -1, 3 * local).split(local, dim=-1)\n"
               "q, k, v = [y.reshape(1, x.size(1), -1, self.d).transpose(1, 2) for y in (q, k, v)]"),
    "each head": (8, "x = x.view(1, x.shape[1], self.h, 3, self.d)\n"
                  "q, k, v = x[..., 0, :], x[..., 1, :], x[..., 2, :]"),
    "each head, split": (8, "x = x.view(1, -1, self.h, 3 * self.d).transpose(1, 2)\nq, k, v = x.chunk(3, dim=-1)"),
    "unbind": (8, "q, k, v = x.view(1, -1, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)"),
    "unbind of a middle axis": (8, "k, q, v = torch.unbind(x.reshape(1, -1, self.h, 3, self.d), dim=3)"),
    "widths": (2, "q, k, v = x.split([self.h * self.d, 2 * self.d, 2 * self.d], dim=-1)\n"
               "q, k, v = [y.unflatten(2, (-1, self.d)) if False else y.view(1, -1, y.size(2) // self.d, self.d) "
               "for y in (q, k, v)]"),
    "slices": (2, "end = self.h * self.d\nq = x[..., :end].view(1, -1, self.h, self.d)\n"
               "k = x[..., end:end + 2 * self.d].view(1, -1, 2, self.d)\n"
               "v = x[..., end + 2 * self.d:].view(1, -1, 2, self.d)"),
    "groups": (2, "x = x.view(1, x.shape[1], 2, -1, self.d)\nq = x[:, :, :, :-2].flatten(2, 3)\n"
               "k, v = x[:, :, :, -2], x[:, :, :, -1]"),
    "groups, repeated keys": (2, "x = x.view(1, x.shape[1], 2, -1, self.d)\n"
                              "q, k, v = x[:, :, :, :-2], x[:, :, :, [-2]], x[:, :, :, [-1]]\n"
                              "k, v = torch.broadcast_to(k, q.shape), v.expand(-1, -1, -1, 4, -1)\n"
                              "q, k, v = [y.flatten(2, 3) for y in (q, k, v)]"),
    "one key head": (1, "q, k, v = x.unsqueeze(1).split((self.h * self.d, self.d, self.d), dim=3)\n"
                     "q = q.view(1, -1, self.h, self.d).transpose(1, 2)"),
    "a method": (8, "q, k, v = self.parts(x)"),
    "a branch by the config": (8, "if config.wide and self.clip is None:\n    v, k, q = x.chunk(3, dim=2)\nelse:\n"
                               f"    q, k, v = x.chunk(3, dim=2)\n{VIEWS}"),
}  # fmt: skip
UNKNOWN = {
    "arithmetic": f"q, k, v = (x * 2).chunk(3, dim=2)\n{VIEWS}",
    "an unknown function": f"q, k, v = other(x).chunk(3, dim=2)\n{VIEWS}",
    "an unknown branch": f"q, k, v = x.chunk(3, dim=2)\nif seen:\n    q, k = k, q\n{VIEWS}",
    "exchanged afterwards": f"q, k, v = x.chunk(3, dim=2)\n{VIEWS}\nq, k = k, q",
    "tokens exchanged": "q, k, v = [y.view(1, self.h, -1, self.d) for y in x.chunk(3, dim=2)]",
}  # fmt: skip
CODE = """
class NewAttention:
    def __init__(self, config):
        self.h = config.num_attention_heads
        self.d = config.hidden_size // self.h
        self.clip = config.attn.clip
        self.fused = nn.Linear(config.hidden_size, config.rows)

    def parts(self, given):
        k, q, v = given.view(1, -1, self.h, 3, self.d).permute(3, 0, 1, 2, 4).unbind(0)
        return (q, k, v)

    def forward(self, hidden_states, seen=None):
        x = self.fused(hidden_states)
BODY
        return self.out(attend(q, k, v))


class NewForCausalLM:
    def __init__(self, config):
        self.attention = NewAttention(config)

    def forward(self, input_ids):
        return self.attention(input_ids, seen=input_ids)
"""


def found(body: str, rows: int, g: int, folder: Path) -> tuple[list[int], ...] | None:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    (folder / "modeling_new.py").write_text(CODE.replace("BODY\n", lines))
    parts = parts_of(folder / "modeling_new.py", "NewForCausalLM", CONFIG)
    return order_of(parts["NewAttention"], CONFIG, "fused", rows, (H, g, D))


def run(body: str, rows: int, g: int) -> tuple[list[int], ...]:
    """The numbers of rows that torch moves to q, k and v, for one token among three."""
    x = torch.arange(3 * rows).view(1, 3, rows)

    def parts(given: Any) -> Any:
        k, q, v = given.view(1, -1, H, 3, D).permute(3, 0, 1, 2, 4).unbind(0)
        return q, k, v

    scope: dict[str, Any] = {
        "x": x, "torch": torch, "self": SimpleNamespace(h=H, d=D, clip=None, parts=parts),
        "config": SimpleNamespace(**CONFIG),
    }  # fmt: skip
    exec(body, scope)
    results: list[list[int]] = []
    for name, heads in (("q", H), ("k", g), ("v", g)):
        array = scope[name] if scope[name].shape[1] == 3 else scope[name].transpose(1, 2)
        results.append(array[0, 1].reshape(heads, -1, D)[:, 0].flatten().sub(rows).tolist())
    return tuple(results)


@pytest.mark.parametrize("name", SPLITS)
def test_order_is_that_of_torch(name: str, tmp_path: Path) -> None:
    g, body = SPLITS[name]
    rows = (H + 2 * g) * D
    assert found(body, rows, g, tmp_path) == run(body, rows, g)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_more_than_movement_is_unknown(name: str, tmp_path: Path) -> None:
    assert found(UNKNOWN[name], 3 * H * D, H, tmp_path) is None


CODEGEN: dict[str, Any] = {
    "vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 256, "n_ctx": 256, "rotary_dim": 4,
    "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def codegen(folder: Path) -> tuple[Any, Path, Path]:
    from transformers import CONFIG_MAPPING

    source = parity.save_checkpoint(CONFIG_MAPPING["codegen"](**CODEGEN), folder / "checkpoint")
    return *drafted(source, folder / "draft"), source


def test_blocks_of_heads(tmp_path: Path) -> None:
    """CodeGen: four blocks, each q, then v, then k; rope rotates pairs of some channels."""
    found, model, source = codegen(tmp_path)
    assert_complete(found)
    assert found.files["codegen_adapter.py"].count("n=4, t=3") == 10
    assert_fits(model, source)


@pytest.mark.slow
def test_logits_of_blocks(tmp_path: Path) -> None:
    """Keys and values exchanged fit as well, but have other logits."""
    _, model, source = codegen(tmp_path)
    assert_same_logits(model, source)
    adapter = model.with_name("codegen_adapter.py")
    text = adapter.read_text()
    adapter.write_text(text.replace('.at("t", 2)', '.at("t", 9)').replace('.at("t", 1)', '.at("t", 2)'))
    adapter.write_text(adapter.read_text().replace('.at("t", 9)', '.at("t", 1)'))
    assert_fits(model, source)
    with pytest.raises(pytest.fail.Exception):
        assert_same_logits(model, source)
