"""`run --chat`: a small model with a tokenizer and a template, from a GGUF file to answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.chat import opened
from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from tests.compile.templates import CHATML, GEMMA
from tests.compile.tokenizer_files import kinds_of, pieces

HIDDEN, FEED, CONTEXT = 32, 64, 256


def write_model(path: Path, template: str | None) -> Path:
    """A Llama of one layer with random weights; `</s>` ends a text, `<|im_end|>` a turn."""
    truth, random = pieces("bpe"), np.random.default_rng(3)
    tokens, kinds = [truth.id_to_piece(at) for at in range(truth.vocab_size())], kinds_of(truth)
    for at, name in ((500, "<|im_start|>"), (501, "<|im_end|>")):
        tokens[at], kinds[at] = name, 3
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([truth.get_score(at) for at in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(501)
    if template is not None:
        writer.add_chat_template(template)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output": (len(tokens), HIDDEN)}
    shapes |= {f"blk.0.attn_{x}": (HIDDEN, HIDDEN) for x in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (FEED, HIDDEN), "blk.0.ffn_up": (FEED, HIDDEN), "blk.0.ffn_down": (HIDDEN, FEED)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    job = open_job(checkpoint=str(write_model(folder / "m.gguf", CHATML)))
    return bringup.build(job, out=folder / "b", target="torch", max_seq_len=CONTEXT, buckets=(64,))


@pytest.fixture(scope="module")
def session(bundle: Path) -> Session:
    return bringup.load(bundle)


def with_template(bundle: Path, folder: Path, template: str | None) -> Path:
    """The same bundle with another template, or none."""
    changed = folder / "b"
    changed.mkdir()
    for entry in bundle.iterdir():
        if entry.name not in ("tokenizer", "manifest.json"):
            (changed / entry.name).symlink_to(entry)
    manifest = json.loads((bundle / "manifest.json").read_text())
    (changed / "tokenizer").mkdir()
    for entry in (bundle / "tokenizer").iterdir():
        if entry.name != "chat_template.jinja":
            (changed / "tokenizer" / entry.name).write_bytes(entry.read_bytes())
    del manifest["files"]["tokenizer/chat_template.jinja"]
    (changed / "manifest.json").write_text(json.dumps(manifest))
    if template is not None:
        (changed / "tokenizer" / "chat_template.jinja").write_text(template)
    return changed


def run(bundle: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["run", str(bundle), *words], input=stdin)
    return done.exit_code, done.stdout, done.stderr


def test_the_stop_tokens_of_the_file_are_the_bundles(session: Session) -> None:
    assert session.tokenizer().eos == {2, 501}


def test_they_end_answers_without_the_package_of_tokenizers(
    bundle: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_new_tokens": 60, "temperature": 5.0}
    runs = ((seed, list(session.generate([1, 9], seed=seed, **settings))) for seed in range(100))
    seed, tokens = next((seed, tokens) for seed, tokens in runs if not {2, 501}.isdisjoint(tokens[:-1]))
    wanted = tokens[: 1 + min(tokens.index(eos) for eos in (2, 501) if eos in tokens)]
    words = ("--max-new-tokens", "60", "--temperature", "5", "--seed", str(seed), "--json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for code, out, err in (
        run(bundle, "--tokens", "1,9", *words),
        run(bundle, "--batch", "-", *words, stdin='{"tokens": [1, 9]}'),
    ):
        assert code == 0, err
        assert (json.loads(out)["tokens"], json.loads(out)["text"]) == (wanted, None)


def test_one_message(bundle: Path, session: Session) -> None:
    code, out, err = run(bundle, "--chat", "--prompt", "Hello <|im_end|>", "--max-new-tokens", "8", "--json")
    assert code == 0, err
    tokenizer = session.tokenizer()
    prompt = tokenizer.encode(
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
        "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n",
        whole=False,
    )
    assert prompt.count(501) == 3
    assert prompt[0] != 1  # what begins a text is the template's to write
    wanted = list(session.generate(prompt, max_new_tokens=8, eos=tokenizer.eos))
    said = json.loads(out)
    assert said["tokens"] == wanted
    assert said["text"] == tokenizer.decode(wanted, skip_special=True)


def test_messages_from_stdin_make_a_conversation(bundle: Path, session: Session) -> None:
    code, out, err = run(
        bundle, "--chat", "--system", "Be brief", "--max-new-tokens", "5", "--json", stdin="one\n\n two \nthree"
    )
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    conversation = opened(session.tokenizer(), "Be brief")
    for message, answer in zip(["one", " two ", "three"], answers, strict=True):
        ids = conversation.user_message(message)
        assert answer["tokens"] == list(session.generate(ids, max_new_tokens=5, eos=session.tokenizer().eos))
        conversation.heard(answer["text"])
    assert len(conversation.messages) == 7


def test_a_resumed_sequence_takes_in_only_what_is_new(session: Session) -> None:
    """And gives what a fresh one gives: with more after it, cut short, changed in the middle, the very same."""
    random = np.random.default_rng(4)
    base = random.integers(3, 500, 40).tolist()
    prompts = [base, [*base, 7, 8], base[:20], [*base[:10], 9, *base[11:]], [*base[:10], 9, *base[11:]], [5]]
    fresh = [list(session.generate(ids, max_new_tokens=6)) for ids in prompts]
    session.reset()
    taken: list[int] = []
    for ids, truth in zip(prompts, fresh, strict=True):
        assert list(session.generate(ids, max_new_tokens=6, resume=True)) == truth
        taken.append(session.stats.prefill_tokens)
    assert taken == [40, 2, 1, 30, 1, 1]


def test_a_resumed_sequence_without_tokens(session: Session) -> None:
    list(session.generate([1, 2, 3], max_new_tokens=2))
    with pytest.raises(BringupError, match="BU015"):
        next(session.generate([], max_new_tokens=2, resume=True))


def test_what_is_refused(bundle: Path, tmp_path: Path) -> None:
    code, _, err = run(with_template(bundle, tmp_path, None), "--chat", "--prompt", "x")
    assert (code, "BU610" in err) == (1, True)
    for words in (
        ["--chat", "--tokens", "1"],
        ["--system", "x", "--prompt", "y"],
        ["--chat", "--tokens", "1", "--prompt", "x"],
    ):
        assert run(bundle, *words)[0] == 2


def test_a_template_that_refuses_is_one_error(bundle: Path, tmp_path: Path) -> None:
    copy = with_template(bundle, tmp_path, GEMMA)
    code, out, err = run(copy, "--chat", "--system", "x", "--prompt", "y")
    assert (code, out) == (1, "")
    assert "error[BU611]: the chat template rejects the conversation: System role not supported\n" in err
    assert err.count("error[") == 1


def test_a_template_bomb_is_one_error(bundle: Path, tmp_path: Path) -> None:
    copy = with_template(bundle, tmp_path, "{{ 'x' * 10 ** 10 }}")
    code, out, err = run(copy, "--chat", "--prompt", "y")
    assert (code, out, err.count("error[BU612]"), "Traceback" in err) == (1, "", 1, False)


def test_a_conversation_that_outgrows_the_context(bundle: Path) -> None:
    code, out, err = run(bundle, "--chat", "--max-new-tokens", "4", stdin="short\n" + "long " * 300 + "\nafter\n")
    assert (code, err.count("error[BU016]")) == (2, 1)
    assert out.strip()
