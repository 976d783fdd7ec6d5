"""Keys of a config.json with values of another JSON type: each is one error, and none counts as absent."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from tests.hostile.test_config import GPT2, LLAMA, errors_of

NOT_TEXT: list[Any] = [["llama"], {}, 3, True]
NOT_OBJECT: list[Any] = [[], "x", 3, False]
WRONG: dict[str, list[Any]] = {
    "model_type": NOT_TEXT,
    "dtype": NOT_TEXT,
    "torch_dtype": NOT_TEXT,
    "quantization_config": NOT_OBJECT,
    "compression_config": NOT_OBJECT,
    "rope_scaling": NOT_OBJECT,
    "rope_parameters": NOT_OBJECT,
    "bos_token_id": ["1", {}, [], 1.5, True],
    "pad_token_id": ["1", {}, [], 1.5, True],
    "eos_token_id": ["1", {}, ["1"], [1, None], 1.5, True],
    "layer_types": ["full_attention", {}, 3],
}
RIGHT: dict[str, list[Any]] = {
    "model_type": ["llama"],
    "dtype": ["float32"],
    "quantization_config": [{}],
    "bos_token_id": [1, -1],
    "pad_token_id": [1, -1],
    "eos_token_id": [1, [], [1, 2]],
}


@pytest.mark.parametrize("key", WRONG)
def test_a_value_of_another_type_is_one_error(key: str) -> None:
    for value in WRONG[key]:
        with pytest.raises(BringupError) as caught:
            raise BringupError(*open_job(None, "dummy", config=LLAMA | {key: value}).findings)
        (finding,) = caught.value.findings
        assert finding.code == ("BU122" if key == "layer_types" else "BU121"), value
        assert finding.parameter == key
        assert f"`{key}`" in finding.message


@pytest.mark.parametrize("key", [*WRONG, *RIGHT])
def test_null_and_the_right_types_are_accepted(key: str) -> None:
    for value in (None, *RIGHT.get(key, [])):
        assert errors_of(LLAMA | {key: value}) == []


@pytest.mark.parametrize("key", ["quantization_config", "bos_token_id", "dtype"])
def test_families_that_do_not_read_a_key(key: str) -> None:
    assert errors_of(GPT2 | {key: 0.5}) == [("BU121", key)]


@pytest.mark.parametrize("key", ["bos_token_id", "pad_token_id", "eos_token_id"])
def test_transformers_rejects_these_tokens_as_well(key: str) -> None:
    for value in WRONG[key]:
        if value in ([], True):
            continue  # accepted there, as an empty list of tokens and as token 1
        with pytest.raises(Exception, match=key):
            LlamaConfig(**{key: value})
