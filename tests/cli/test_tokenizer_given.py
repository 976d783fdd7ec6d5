"""Which tokenizer a bundle of a GGUF file has: the file's own, one in its folder, or the one that is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.compile.bundle.contents import tokenizer_of
from bringup.compile.job import open_job
from bringup.compile.text.tokenizer import load_tokenizer
from bringup.graphs.gpt2 import SIZES
from tests.adapters.written import raises
from tests.cli.conftest import Bringup
from tests.cli.headers import write_gguf
from tests.compile.tokenizer_files import write_tokenizer

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
UNKNOWN = {"model": "gpt2", "pre": "of-no-model", "tokens": TOKENS, "merges": ["a b"], "eos_token_id": 2}


def tokenizer_json(folder: Path, tokens: list[str] = TOKENS) -> Path:
    model = {"type": "BPE", "vocab": {t: at for at, t in enumerate(tokens)}, "merges": [["a", "b"]]}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return folder / "tokenizer.json"


def test_one_in_the_folder_takes_the_place_of_what_cannot_be_built(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "m.gguf", UNKNOWN)
    with raises("BU232", "--tokenizer FILE"):
        load_tokenizer(file)
    tokenizer_json(tmp_path)
    tokenizer = load_tokenizer(file)
    assert tokenizer.encode("ab") == [5]
    assert tokenizer.warning is not None
    assert (tokenizer.warning.code, str(tmp_path) in tokenizer.warning.help) == ("BU232", True)


def test_the_files_own_comes_first(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "m.gguf", UNKNOWN | {"pre": "gpt-2"})
    tokenizer_json(tmp_path, ["b", "a", "ab"])
    tokenizer = load_tokenizer(file)
    assert (tokenizer.encode("ab"), tokenizer.warning) == ([5], None)


def test_one_of_another_model_is_refused(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "m.gguf", UNKNOWN)
    tokenizer_json(tmp_path, ["b", "a", "ab"])
    with raises("BU231", "0 of 6 tokens are the same.*--tokenizer FILE"):
        load_tokenizer(file)


@pytest.mark.parametrize("folder", [True, False])
def test_the_one_that_is_given(tmp_path: Path, folder: bool) -> None:
    other = tmp_path / "other"
    other.mkdir()
    file = tokenizer_json(other)
    job = open_job(None, str(write_gguf(tmp_path / "tiny.gguf")), tokenizer=str(other if folder else file))
    assert job.checkpoint.tokenizer == file
    tokenizer = tokenizer_of(job)
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [5]
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        with raises("BU034", "no such file or folder"):
            open_job("gpt2", "dummy", tokenizer=str(tmp_path / name))


@pytest.mark.parametrize(("stated", "eos"), [(3, {3}), ([3, 4], {3, 4}), (None, set())])
def test_the_models_config_has_the_stop_tokens_if_no_file_of_the_tokenizer_has(
    tmp_path: Path, stated: object, eos: set[int]
) -> None:
    config = SIZES["gpt2"] | {"eos_token_id": stated}
    job = open_job("gpt2", "dummy", config=config, tokenizer=str(tokenizer_json(tmp_path)))
    tokenizer = tokenizer_of(job)
    assert tokenizer is not None
    assert tokenizer.eos == eos


def test_compile_takes_it(bringup: Bringup, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tokenizer_json(other)
    path = write_gguf(tmp_path / "tiny.gguf")
    said = bringup("compile", "--checkpoint", path, "--tokenizer", other, "--target", "torch", "-o", tmp_path / "b")
    assert said.exit_code == 0, said.output
    assert load_tokenizer(tmp_path / "b" / "tokenizer", trusted=True).encode("ab") == [5]
