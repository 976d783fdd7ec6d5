"""The text of a drafted model around its layers: a norm of embeddings, learned positions, bias and scale of logits."""

from __future__ import annotations

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.text.meaning import logit_sign


def model_text(facts: Facts) -> str:
    """The methods of the graph that `CausalLM` computes otherwise, '' for none."""
    roles, meaning = facts.roles, facts.hints.meaning
    norm = meaning.embedding_norm if meaning else ""
    own = roles.has("embed_norm")
    init = [
        *(["self.model.embed_norm = self.norm(m, config.eps)"] if own else []),
        *([POSITIONS.format(rows=_rows(facts))] if facts.learned else []),
        *([HEAD] if roles.has("head", "bias") else []),
    ]
    before = [
        *(["x_Nm = x_Nm + self.model.positions(step.positions" + _offset(facts) + ")"] if facts.learned else []),
        *([f"x_Nm = self.model.{'embed_norm' if own else 'norm'}(x_Nm)"] if own or norm else []),
    ]
    text = ""
    if init:
        config = f"{facts.title}Config"
        text += f'\n    def __init__(self, config: {config}, dtype: str = "float32") -> None:\n'
        text += "        super().__init__(config, dtype)\n        m = config.hidden\n"
        text += "".join(f"        {line}\n" for line in init)
    if before:
        text += "\n    def prologue(self, step):\n        x_Nm, *shared = super().prologue(step)\n"
        text += "".join(f"        {line}\n" for line in before) + "        return (x_Nm, *shared)\n"
    if sign := logit_sign(facts):
        text += "\n    def epilogue(self, x_Rm):\n"
        text += f"        return super().epilogue(x_Rm) {sign} self.config.logit_scale\n"
    return text


HEAD = 'self.lm_head = Linear("out:vocab in:m", vocab=config.vocab_size, m=m, bias=True)'
POSITIONS = 'self.model.positions = Embedding("position m", position={rows}, m=m)'


def _offset(facts: Facts) -> str:
    offset = facts.hints.meaning.position_offset if facts.hints.meaning else 0
    return f" + {offset}" if offset else ""


def _rows(facts: Facts) -> str:
    return f"config.max_positions{_offset(facts)}"
