"""Inputs that no step of generation has are None in each class, unless a class gives them another value."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of

CODE = """
class NewAttention:
    def forward(self, hidden_states, memory=None, attention_mask=None):
        if memory is not None:
            hidden_states = hidden_states * 3
        return hidden_states


class NewModel:
    def __init__(self, config):
        self.layers = nn.ModuleList([NewAttention() for _ in range(config.num_hidden_layers)])

    def forward(self, input_ids, memory=None):
        hidden_states = input_ids
        STATEMENT
        for layer in self.layers:
            hidden_states = layer(CALL)
        return hidden_states


class NewForCausalLM:
    def __init__(self, config):
        self.model = NewModel(config)

    def forward(self, input_ids, memory=None, attention_mask=None):
        return self.model(input_ids, memory=MEMORY)
"""
KEYWORD = "hidden_states, memory=memory"
# By name: a statement before the layers, the call of a layer, the argument of the model; whether there is a question.
CASES: dict[str, tuple[str, str, str, bool]] = {
    "passed on": ("pass", KEYWORD, "memory", False),
    "passed on by position": ("pass", "hidden_states, memory", "memory", False),
    "not passed": ("pass", "hidden_states", "None", False),
    "None if it is": ("memory = self.one(memory) if memory is not None and 0 in memory else None", KEYWORD, "memory",
                      False),
    "another value": ("pass", KEYWORD, "input_ids", True),
    "another value by position": ("pass", "hidden_states, hidden_states", "memory", True),
    "some values by position": ("pass", "*hidden_states", "memory", True),
    "assigned": ("memory = self.one(input_ids)", KEYWORD, "memory", True),
    "assigned with another": ("memory, other = self.one(input_ids)", KEYWORD, "memory", True),
    "assigned by a loop": ("for memory in input_ids:\n            pass", KEYWORD, "memory", True),
    "assigned in a test": ("if (memory := self.one(input_ids)) is None:\n            pass", KEYWORD, "memory", True),
    "assigned in another branch": ("memory = self.one(input_ids) if memory is None else None", KEYWORD, "memory", True),
    "an input of a step": ("pass", "hidden_states, memory=attention_mask", "memory", True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_branch_for_an_input(name: str, tmp_path: Path) -> None:
    statement, call, memory, is_question = CASES[name]
    text = CODE.replace("STATEMENT", statement).replace("CALL", call).replace("MEMORY", memory)
    (tmp_path / "modeling_new.py").write_text(text)
    meaning = meaning_of(parts_of(tmp_path / "modeling_new.py", "NewForCausalLM", {}))
    texts = [text for texts in meaning.unexplained.values() for text in texts]
    assert ("hidden_states = hidden_states * 3" in texts) is is_question


def test_a_required_argument_has_a_value(tmp_path: Path) -> None:
    text = CODE.replace("STATEMENT", "pass").replace("CALL", KEYWORD).replace("MEMORY", "memory")
    text = text.replace("hidden_states, memory=None", "hidden_states, memory")
    (tmp_path / "modeling_new.py").write_text(text)
    meaning = meaning_of(parts_of(tmp_path / "modeling_new.py", "NewForCausalLM", {}))
    assert "hidden_states = hidden_states * 3" in meaning.unexplained["Attention"]
