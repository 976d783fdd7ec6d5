"""Adapters with typical mistakes, for a small GPT-2 and a small Llama, and the expected results of `--fix`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.cli.headers import Shapes, gpt2_config, gpt2_shapes, write_checkpoint

ROOT = Path(__file__).parents[2]
GPT2 = (ROOT / "adapters/gpt2.py").read_text("utf-8")
CONV1D = (ROOT / "tests/check/forgetful_gpt2.py").read_text("utf-8")
TURNED = CONV1D.replace('"h.{L}.attn.c_proj.weight")', '"h.{L}.attn.c_proj.weight", "in out")')  # in order
LLAMA = (ROOT / "adapters/llama.py").read_text("utf-8")
# Every projection in a line of its own, with axes; f-strings in loops, as adapters of other models have them.
LOOPS = '''"""Llama, in loops."""

from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter, tied


def adapter(config):
    llama = Adapter("llama", defaults=("vocab m",), prefix="model.")
    llama["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    for n in ("input", "post_attention"): llama[f"model.layers.{{L}}.{n}_layernorm.weight"] = S(f"layers.{{L}}.{n}_layernorm.weight")
    for x in "qkvo":
        llama[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = S(f"layers.{{L}}.self_attn.{x}_proj.weight", "out in")
    for x in ("gate", "up", "down"):
        llama[f"model.layers.{{L}}.mlp.{x}_proj.weight"] = S(f"layers.{{L}}.mlp.{x}_proj.weight", "out in")
    llama["lm_head.weight"] = tied(S("lm_head.weight", "out in"), S("embed_tokens.weight"), when=config.tied_head)
    return llama
'''  # noqa: E501

SMALL_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 80, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def llama_shapes() -> Shapes:
    """The tensors of a small LlamaForCausalLM, as transformers names them."""
    m, f, kv, vocab = 64, 96, 32, 80
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, m), "model.norm.weight": (m,), "lm_head.weight": (vocab, m)}
    for layer in range(2):
        rows = {"self_attn.q_proj": (m, m), "self_attn.k_proj": (kv, m), "self_attn.v_proj": (kv, m)}
        rows |= {"self_attn.o_proj": (m, m), "mlp.gate_proj": (f, m), "mlp.up_proj": (f, m), "mlp.down_proj": (m, f)}
        rows |= {"input_layernorm": (m,), "post_attention_layernorm": (m,)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in rows.items()}
    return shapes


def llama_checkpoint(folder: Path) -> Path:
    return write_checkpoint(folder, llama_shapes(), json.loads(json.dumps(SMALL_LLAMA)))


def gpt2_checkpoint(folder: Path) -> Path:
    small = {"layers": 3, "hidden": 128, "vocab": 96, "positions": 16}
    return write_checkpoint(folder, gpt2_shapes(**small), gpt2_config(**small))


class Broken(NamedTuple):
    """`text` with `right` put wrong; what is put right again is the text."""

    family: str
    text: str
    right: str
    wrong: str

    def write(self, file: Path) -> str:
        """Writes the broken adapter; gives the one in order."""
        assert self.text.count(self.right) >= 1, self.right
        file.write_bytes(self.text.replace(self.right, self.wrong).encode())
        return self.text

    def checkpoint(self, folder: Path) -> Path:
        return {"gpt2": gpt2_checkpoint, "llama": llama_checkpoint}[self.family](folder)


MULTI_LINE = GPT2.replace(
    'S("h.{L}.{m}.{p}")',
    'S(  # where it lies\n        "h.{L}.{m}.{p}",  # ünïcödé\n    )',
)


def _gpt2(right: str, wrong: str) -> Broken:
    return Broken("gpt2", GPT2, right, wrong)


def _llama(right: str, wrong: str) -> Broken:
    return Broken("llama", LLAMA, right, wrong)


def _loops(right: str, wrong: str) -> Broken:
    return Broken("llama", LOOPS, right, wrong)


REPAIRED = {
    "a letter too many in a name": _gpt2('S("h.{L}.{m}.{p}")', 'S("hh.{L}.{m}.{p}")'),
    "another last part": Broken("gpt2", TURNED, 'S("h.{L}.attn.c_proj.weight"', 'S("h.{L}.attn.c_prj.weight"'),
    "a prefix of a variable": _gpt2('S("h.{L}.{n}.{p}")', 'S("h.{L}.x{n}.{p}")'),
    "two parts, on both sides of a variable": _gpt2('S("h.{L}.{n}.{p}")', 'S("hs.{L}.l{n}.{p}")'),
    "the adapter's default": _gpt2('"in out", "vocab m"', '"out in", "vocab m"'),
    "another default": _gpt2('"vocab m", "position m"', '"m vocab", "position m"'),
    "axes of an embedding": _gpt2('S("wte.weight", "vocab m")', 'S("wte.weight", "m vocab")'),
    "stated axes of Conv1D": Broken("gpt2", TURNED, '"h.{L}.{m}.weight", "in out"', '"h.{L}.{m}.weight", "out in"'),
    "axes by keyword": Broken("gpt2", GPT2.replace(
        'S("wte.weight", "vocab m")', 'S("wte.weight", axes="vocab m")'
    ), 'axes="vocab m"', 'axes="m vocab"'),
    "a rule over lines, with comments": Broken("gpt2", MULTI_LINE, '"h.{L}.{m}.{p}",', '"h.{L}.{m}s.{p}",'),
    "the same mistake in two rules": _gpt2('S("h.{L}.', 'S("hx.{L}.'),
    "llama: a misspelt module": _llama('S("layers.{L}.mlp.{x}', 'S("layers.{L}.mpl.{x}'),
    "llama: a module renamed": _llama('S("layers.{L}.self_attn.{x}', 'S("layers.{L}.attn.{x}'),
    "llama: the wrong layout": _llama('("out in", "vocab m")', '("in out", "vocab m")'),
    "llama: an f-string in a loop": _loops('S(f"layers.{{L}}.self_attn.', 'S(f"layers.{{L}}.self_atn.'),
    "llama: a loop in one line": _loops('S(f"layers.{{L}}.{n}_layernorm', 'S(f"layers.{{L}}.{n}_layernrm'),
    "llama: axes in a loop": _loops('mlp.{x}_proj.weight", "out in")', 'mlp.{x}_proj.weight", "in out")'),
    "llama: the head": _loops('S("lm_head.weight"', 'S("lm_haed.weight"'),
    "llama: the final norm and the embedding": _llama('S("{n}.weight")', 'S("x{n}.weight")'),
}  # fmt: skip

_GATE = '    llama["model.layers.{L}.mlp.gate_proj.weight"] = S("layers.{L}.mlp.w1.weight", "out in")\n'
_UP = _GATE.replace("gate", "up").replace("w1", "w3")
W1_AND_W3 = LOOPS.replace('("gate", "up", "down")', '("down",)').replace(
    "    for x in (", f"{_GATE}{_UP}    for x in ("
)
REFUSED = {
    "a square read the wrong way": Broken("gpt2", CONV1D, "# the mistake", "# it stays"),
    "two names of the same shape, both unlike": Broken("llama", W1_AND_W3, "Llama, in loops", "Llama"),
    "a tensor that another rule reads already": _gpt2('S("wte.weight", "vocab m")', 'S("wpe.weight", "vocab m")'),
    "one of the alternatives": _gpt2("attn.c_attn|attn.c_proj", "attn.c_atn|attn.c_proj"),
    "a name that is made up while it runs": _gpt2('S("h.{L}.{n}.{p}")', 'S(".".join(["h.{L}", "x{n}.{p}"]))'),
    "a name in two pieces": _gpt2('S("h.{L}.{n}.{p}")', 'S("h.{L}." "x{n}" ".{p}")'),
}  # fmt: skip
