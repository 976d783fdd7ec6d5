"""`bringup run --batch`: lines in, answers out in the same order, and every wrong line at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bringup.cli.main import cli
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.request import Request
from bringup.diagnostics import fail
from tests.cli.test_run import FakeTokenizer
from tests.runtime import exact


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Batch:
    fake = exact.new_batch(3)
    fake.load_seconds = 0.25

    def tokenizer() -> Any:
        raise fail("BU014", "the bundle has no tokenizer")

    monkeypatch.setattr(fake, "tokenizer", tokenizer)
    monkeypatch.setattr("bringup.compile.runtime.batch.load_batch", lambda bundle, executor, **draft: fake)
    return fake


def run(*words: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(cli, ["run", "b", *words], input=stdin)


def test_answers_are_in_the_order_of_the_lines(batch: Batch, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"tokens": [1, 2], "max_new_tokens": 30},
        {"tokens": [3] * 40},
        {"tokens": [4], "max_new_tokens": 1, "seed": 7, "temperature": 2, "top_p": 0.5},
        {"tokens": [1, 2], "max_new_tokens": 2},
        {"tokens": [5], "temperature": 1.5},
        {"tokens": [5], "temperature": 1.5, "top_k": 2},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    result = run("--batch", str(path), "--max-new-tokens", "5", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    wanted = [exact.expected(Request(**{"max_new_tokens": 5, "seed": 3, **line})) for line in lines]
    assert [answer["tokens"] for answer in answers] == wanted
    assert {answer["reason"] for answer in answers} <= {"length", "context"}
    assert [answer["reason"] for answer in answers if len(answer["tokens"]) < 5] == ["length", "length"]
    keys = ["tokens", "text", "reason", "prefill_tokens_per_s", "decode_tokens_per_s", "load_seconds", "weights"]
    assert all(list(answer) == keys for answer in answers)
    assert {(answer["text"], answer["load_seconds"], answer["weights"]) for answer in answers} == {
        (None, 0.25, "checkpoint")
    }
    assert all(answer["prefill_tokens_per_s"] > 0 for answer in answers)
    assert f"Generated {sum(map(len, wanted))} tokens for 6 requests in " in result.stderr


def test_a_file_with_a_byte_order_mark(batch: Batch, tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "requests.jsonl"
    path.write_text('{"tokens": [1, 2]}\n{"tokens": [3]}\n', "utf-8-sig")
    result = run("--batch", str(path), "--max-new-tokens", "2", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2), result.output


def test_prompts_from_stdin(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "tokenizer", FakeTokenizer)
    result = run("--batch", "-", "--max-new-tokens", "9", stdin='{"prompt": "four"}\n{"tokens": [4]}')
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["tokens"] == second["tokens"] == exact.expected(Request([4], max_new_tokens=9, eos={7}))
    assert first["text"] == "".join(f" {token}" for token in first["tokens"])


def test_every_wrong_line_is_reported_before_anything_runs(batch: Batch, tmp_path: Path) -> None:
    lines = [
        '{"tokens": [1]}', "{", "[1]", "", '{"tokens": [1], "prompt": "x"}', "{}", '{"tokens": [1], "sed": 1}',
        '{"tokens": []}', '{"tokens": [99]}', '{"tokens": [1.5]}', '{"tokens": [true]}', '{"tokens": "1"}',
        '{"tokens": [1], "max_new_tokens": 0}', '{"tokens": [1], "max_new_tokens": true}',
        '{"tokens": [1], "top_p": 0}', '{"tokens": [1], "temperature": NaN}', '{"tokens": [1], "seed": -1}',
        f'{{"tokens": {[1] * 300}}}', '{"tokens": [1], "tokens": [2]}', '{"tokens": [1], "lora": "x"}',
    ]  # fmt: skip
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines))
    result = run("--batch", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    wrong = [number for number, line in enumerate(lines, 1) if line and number != 1]
    found = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert [line.split(": ")[:2] for line in found] == [["error[BU042]", f"line {number}"] for number in wrong]
    assert "did you mean `seed`?" in result.stderr
    assert "help: compile with --lora-dir DIR, the folder of the LoRA" in result.stderr
    assert not batch


def test_prompts_need_a_tokenizer(batch: Batch) -> None:
    result = run("--batch", "-", stdin='{"prompt": "x"}')
    assert (result.exit_code, "BU014" in result.stderr) == (2, True)


def test_no_lines_are_no_requests(batch: Batch) -> None:
    result = run("--batch", "-", stdin="\n\n")
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize("words", [["--prompt", "x"], ["--tokens", "1"], ["--chat"], ["--system", "x"]])
def test_a_batch_has_its_own_prompts(batch: Batch, words: list[str]) -> None:
    assert run("--batch", "-", *words).exit_code == 2


def test_a_file_that_is_not_there(batch: Batch, tmp_path: Path) -> None:
    assert "BU034" in run("--batch", str(tmp_path / "none.jsonl")).stderr
    assert "BU233" in run("--batch", str(tmp_path)).stderr
