"""The form sharded_state as a source: what `--to sharded_state` wrote of every family is read by the same table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bringup as package
from bringup.adapters.vllm.ranks import FAMILIES
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.by_hand import column, row
from tests.convert.test_convert import equal, save
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS

FIRST, SECOND = (f"model-rank-{rank}-part-0.safetensors" for rank in range(2))
MAPPING = "the `mapping` of `{}/bringup.json` is wrong: "


def written(bringup: Bringup, place: Path, source: Path, *words: object) -> Path:
    result = bringup("convert", "--checkpoint", source, "--to", "sharded_state", *words, "-o", place)
    assert result.exit_code == 0, result.output
    return place


def assert_back(bringup: Bringup, source: Path, ranks: Path) -> None:
    """`ranks` has the parameters of `source`, bit for bit."""
    checked = bringup("check", "--checkpoint", ranks)
    assert checked.exit_code == 0, checked.output
    own, back = (package.adapt(package.open_job(checkpoint=place)) for place in (source, ranks))
    equal(back, own)


@pytest.mark.parametrize("words", [("--tp", 1), ("--tp", 2), ("--tp", 4)], ids=str)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_back(bringup: Bringup, tmp_path: Path, name: str, words: tuple[object, ...]) -> None:
    """With 4 ranks, two have each key head; the tied head of GPT-2 is stored once."""
    source = save(tmp_path / "source", *getattr(models, name)())
    ranks = written(bringup, tmp_path / "ranks", source, *words)
    assert_back(bringup, source, ranks)
    (ranks / "bringup.json").unlink()
    assert_back(bringup, source, ranks)


@pytest.mark.parametrize("name", ["ct-int8", "modelopt-nvfp4"])  # one described by config.json, one by another file
def test_a_quantised_source(bringup: Bringup, tmp_path: Path, name: str) -> None:
    """The ranks have the exact values as floats, so that their config.json states no quantisation."""
    quantised, exact = write("llama", FORMATS[name], tmp_path)
    ranks = written(bringup, tmp_path / "ranks", quantised, "--tp", 2)
    found, wanted = (json.loads((place / "config.json").read_text("utf-8")) for place in (ranks, exact))
    assert found == wanted
    assert_back(bringup, exact, ranks)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama", ("--tp", 2, "--pp", 2)),
        ("llama", ("--pp", 2, "--vocab-multiple", 100)),
        ("mixtral", ("--tp", 2, "--ep", 2)),
    ],
)
def test_a_division_that_only_bringup_json_describes(
    bringup: Bringup, tmp_path: Path, name: str, words: tuple[object, ...]
) -> None:
    source = save(tmp_path / "source", *getattr(models, name)())
    assert_back(bringup, source, written(bringup, tmp_path / "ranks", source, *words))


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (2, 2), (2, 1)])
def test_a_tied_head_of_another_stage(bringup: Bringup, tmp_path: Path, tp: int, pp: int) -> None:
    """Two stages store the matrix of embedding and head once each, one stage stores it once."""
    tensors, config = models.llama(tie_word_embeddings=True)
    del tensors["lm_head.weight"]
    source = save(tmp_path / "source", tensors, config)
    ranks = written(bringup, tmp_path / "ranks", source, "--tp", tp, "--pp", pp)
    files = [load_file(file) for file in sorted(ranks.glob("*.safetensors"))]
    matrices = ("model.embed_tokens.weight", "lm_head.weight")
    assert [[name for name in matrices if name in file] for file in files] == [
        [matrices[0] if pp > 1 and rank < tp else matrices[1]] for rank in range(tp * pp)
    ]
    assert_back(bringup, source, ranks)


@pytest.mark.parametrize("through", ["", "trtllm", "sharded_state"])
def test_a_head_that_the_config_ties_is_stored_once(bringup: Bringup, tmp_path: Path, through: str) -> None:
    """The loader of vLLM rejects a tensor of which its model has no parameter: a published folder may have both."""
    tensors, config = models.llama(tie_word_embeddings=True)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    source = save(tmp_path / "source", tensors, config)
    place = source
    if through:
        place = tmp_path / "through"
        assert bringup("convert", "--checkpoint", source, "--to", through, "--pp", 2, "-o", place).exit_code == 0
    ranks = written(bringup, tmp_path / "ranks", place, "--tp", 2)
    for rank in range(2):
        stored = load_file(ranks / f"model-rank-{rank}-part-0.safetensors")
        assert "model.embed_tokens.weight" not in stored
        padded = np.concatenate([tensors["lm_head.weight"], np.zeros_like(tensors["lm_head.weight"])])
        np.testing.assert_array_equal(stored["lm_head.weight"], column(padded, rank, 2))
    assert_back(bringup, source, ranks)


def test_a_head_that_contradicts_its_tie(bringup: Bringup, tmp_path: Path) -> None:
    source = save(tmp_path / "source", *models.llama(tie_word_embeddings=True))
    result = bringup("convert", "--checkpoint", source, "--to", "sharded_state", "-o", tmp_path / "ranks")
    assert result.exit_code == 1
    assert "error[BU140]: the config ties `lm_head.weight` and `model.embed_tokens.weight`" in result.output
    assert not (tmp_path / "ranks").exists()


def test_files_that_another_program_wrote(bringup: Bringup, tmp_path: Path) -> None:
    """Two ranks by hand, the second one in two parts; the vocabulary of 32 is padded to 64."""
    tensors, config = models.llama(layers=1, bias=False)
    source = save(tmp_path / "source", tensors, config)
    folder, layer = tmp_path / "ranks", "model.layers.0."
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for rank in range(2):
        found = {name: tensors[name] for name in tensors if "norm" in name}
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            padded = np.concatenate([tensors[name], np.zeros_like(tensors[name])])
            found[name] = column(padded, rank, 2)
        fused = {"self_attn.qkv_proj": [f"self_attn.{x}_proj" for x in "qkv"]}
        fused |= {"mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"]}
        for name, parts in fused.items():
            rows = [column(tensors[f"{layer}{part}.weight"], rank, 2) for part in parts]
            found[f"{layer}{name}.weight"] = np.concatenate(rows)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{layer}{name}.weight"] = row(tensors[f"{layer}{name}.weight"], rank, 2)
        names = sorted(found)
        parts = [names] if rank == 0 else [names[:3], names[3:]]
        for part, some in enumerate(parts):
            arrays = {name: np.ascontiguousarray(found[name]) for name in some}
            save_file(arrays, folder / f"model-rank-{rank}-part-{part}.safetensors")
    assert_back(bringup, source, folder)
    (folder / "model-rank-1-part-0.safetensors").unlink()
    result = bringup("check", "--checkpoint", folder)
    assert result.exit_code == 1
    assert f"`{folder}` is divided among 2 ranks; it lacks `model-rank-1-part-0.safetensors`" in result.output


def test_the_same_division_is_copied(bringup: Bringup, tmp_path: Path) -> None:
    """By the command that wrote it, whose form pads the vocabulary; another one is converted."""
    source = save(tmp_path / "source", *models.llama())
    two = written(bringup, tmp_path / "two", source, "--tp", 2)
    again = bringup("convert", "--checkpoint", two, "--to", "sharded_state", "--tp", 2, "-o", tmp_path / "again")
    assert "copied" in again.output, again.output
    for file in (FIRST, SECOND):
        assert (tmp_path / "again" / file).read_bytes() == (two / file).read_bytes()
    four = written(bringup, tmp_path / "four", two, "--tp", 4)
    direct = written(bringup, tmp_path / "direct", source, "--tp", 4)
    for rank in range(4):
        file = f"model-rank-{rank}-part-0.safetensors"
        equal(load_file(four / file), load_file(direct / file))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mapping": 3}, MAPPING + "it is not an object"),
        ({"mapping": {"tp_size": "2"}}, MAPPING + "`tp_size` is '2', not an integer from 1"),
        ({"mapping": {"tp_size": 2.0}}, MAPPING + "`tp_size` is 2.0, not an integer from 1"),
        ({"mapping": {"tp_size": True}}, MAPPING + "`tp_size` is True, not an integer from 1"),
        ({"mapping": {"tp_size": 0}}, MAPPING + "`tp_size` is 0, not an integer from 1"),
        ({"mapping": {"tp_size": 3, "ep_size": 2}}, MAPPING + "3 tensor-parallel and 2 expert-parallel ranks"),
        ({"mapping": {"tp_size": 1 << 30}}, MAPPING + "1,073,741,824 ranks exceed the limit of 10,000"),
        ({"mapping": {"pp_size": 2, "stage_layers": ["1", 1]}}, MAPPING + "`stage_layers` is ['1', 1], not a list"),
        ({"mapping": {"physical_to_logical_map": [0]}}, MAPPING + "`physical_to_logical_map` is [0], not a list of"),
        ({"mapping": {"tp_size": 9000}}, "is divided among 9000 ranks; it lacks `model-rank-2-part-0.safetensors`"),
        (
            {"mapping": {"tp_size": 4}},
            "it lacks `model-rank-2-part-0.safetensors`, `model-rank-3-part-0.safetensors`",
        ),
        ({"mapping": {"tp_size": 1}}, "it also has `model-rank-1-part-0.safetensors`"),
    ],
)
def test_a_division_that_does_not_fit(
    bringup: Bringup, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()), "--tp", 2)
    note = json.loads((ranks / "bringup.json").read_text("utf-8"))
    (ranks / "bringup.json").write_text(json.dumps(note | change), "utf-8")
    result = bringup("check", "--checkpoint", ranks)
    assert result.exit_code == 1
    assert "BU229" in result.output
    assert message.format(ranks) in result.output, result.output


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff"])
def test_a_bringup_json_that_is_not_readable(bringup: Bringup, tmp_path: Path, text: bytes) -> None:
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()), "--tp", 2)
    (ranks / "bringup.json").write_bytes(text)
    result = bringup("check", "--checkpoint", ranks)
    assert f"error[BU229]: `{ranks}/bringup.json` is not readable" in result.output, result.output
    for file in (FIRST, SECOND):
        (ranks / file).unlink()
    (save(tmp_path / "other", *models.llama()) / "model.safetensors").rename(ranks / "model.safetensors")
    assert bringup("check", "--checkpoint", ranks).exit_code == 0  # it is a file of another program


def test_a_tensor_in_two_parts(bringup: Bringup, tmp_path: Path) -> None:
    """Parts of an older conversion: the two have different values, so neither is used without an error."""
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()), "--tp", 2)
    old = {name: array + 1 for name, array in load_file(ranks / SECOND).items() if name == "model.norm.weight"}
    save_file(old, ranks / "model-rank-1-part-1.safetensors")
    result = bringup("check", "--checkpoint", ranks)
    assert result.exit_code == 1
    assert "error[BU217]: `rank1.model.norm.weight` of" in result.output, result.output
    assert result.output.count("error[") == 1


def test_missing_last_ranks(bringup: Bringup, tmp_path: Path) -> None:
    """The files of other programs do not state their number."""
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()), "--tp", 4)
    (ranks / "bringup.json").unlink()
    (ranks / "model-rank-3-part-0.safetensors").unlink()
    result = bringup("check", "--checkpoint", ranks)
    assert "error[BU229]: the folder has 3 ranks, among which the model cannot be divided" in result.output
    assert result.output.count("error[") == 1


def test_ranks_next_to_other_weights(bringup: Bringup, tmp_path: Path) -> None:
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()), "--tp", 2)
    save_file({"weight": np.ones(2, "f4")}, ranks / "extra.safetensors")
    result = bringup("check", "--checkpoint", ranks)
    assert "has the files of 2 ranks in the form `sharded_state`, and other weights" in result.output, result.output


def test_a_family_without_names(bringup: Bringup, tmp_path: Path) -> None:
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.llama()))
    config = json.loads((ranks / "config.json").read_text("utf-8"))
    (ranks / "config.json").write_text(
        json.dumps(config | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"})
    )
    result = bringup("check", "--checkpoint", ranks)
    assert "error[BU140]: the form `sharded_state` is not defined for `olmo2`" in result.output, result.output


def test_repeated_experts_are_only_copied(bringup: Bringup, tmp_path: Path) -> None:
    words = ("--ep", 2, "--redundant-experts", 2)
    ranks = written(bringup, tmp_path / "ranks", save(tmp_path / "source", *models.mixtral()), *words)
    assert "error[BU140]: experts of a folder" in bringup("check", "--checkpoint", ranks).output
    again = written(bringup, tmp_path / "again", ranks, *words)
    assert (again / SECOND).read_bytes() == (ranks / SECOND).read_bytes()


def test_ranks_in_another_form_are_no_checkpoint(bringup: Bringup, tmp_path: Path) -> None:
    """One error instead of one for each matrix; the files of one rank are a checkpoint."""
    source = save(tmp_path / "source", *models.llama())
    for size, code in ((2, 1), (1, 0)):
        folder = tmp_path / f"of-{size}"
        done = bringup("convert", "--checkpoint", source, "--to", "graph", "--tp", size, "-o", folder)
        assert done.exit_code == 0, done.output
        result = bringup("check", "--checkpoint", folder)
        assert result.exit_code == code, result.output
    result = bringup("check", "--checkpoint", tmp_path / "of-2")
    assert "has the files of 2 ranks in the form `graph`, whose parts are not joined" in result.output
    assert result.output.count("error[") == 1


def test_ranks_of_different_conversions(bringup: Bringup, tmp_path: Path) -> None:
    """A tensor that every rank holds must have the same values in each; only the values show it."""
    source = save(tmp_path / "source", *models.llama())
    ranks = written(bringup, tmp_path / "ranks", source, "--tp", 2)
    sound = bringup("check", "--checkpoint", ranks, "--values")
    assert sound.exit_code == 0, sound.output
    tensors = load_file(ranks / SECOND)
    norms = [name for name in tensors if name.endswith("input_layernorm.weight")]
    tensors |= {name: tensors[name] + 1 for name in norms}
    save_file(tensors, ranks / SECOND)
    assert bringup("check", "--checkpoint", ranks).exit_code == 0
    for words in (("check", "--values"), ("convert", "-o", tmp_path / "joined")):
        found = bringup(*words, "--checkpoint", ranks)
        assert found.exit_code == 1
        message = "cannot drop `rank1.model.layers.{0..1}.input_layernorm.weight` as another rank holds the same"
        assert f"error[BU115]: {message}: the values differ" in found.output
        assert "help: give the files of one conversion" in found.output
    assert not (tmp_path / "joined").exists()
