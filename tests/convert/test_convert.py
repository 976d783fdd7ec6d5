"""`bringup convert`: the folder it writes, in every form, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Bringup
from tests.convert import by_hand, models

# TensorRT-LLM's names and shapes of a Llama's rank, from docs/source/architecture/checkpoint.md and
# tensorrt_llm/models/llama/convert.py of NVIDIA/TensorRT-LLM: m hidden, f feed-forward, v vocabulary, h query heads and
# g key heads of d channels, t ranks of a stage; {L} counts from 0 in each stage.
TRTLLM = {
    "transformer.vocab_embedding.weight": "v m",
    "transformer.layers.{L}.input_layernorm.weight": "m",
    "transformer.layers.{L}.attention.qkv.weight": "(h+2g)d/t m",
    "transformer.layers.{L}.attention.qkv.bias": "(h+2g)d/t",
    "transformer.layers.{L}.attention.dense.weight": "m hd/t",
    "transformer.layers.{L}.attention.dense.bias": "m",
    "transformer.layers.{L}.post_layernorm.weight": "m",
    "transformer.layers.{L}.mlp.fc.weight": "f/t m",
    "transformer.layers.{L}.mlp.fc.bias": "f/t",
    "transformer.layers.{L}.mlp.gate.weight": "f/t m",
    "transformer.layers.{L}.mlp.gate.bias": "f/t",
    "transformer.layers.{L}.mlp.proj.weight": "m f/t",
    "transformer.layers.{L}.mlp.proj.bias": "m",
    "transformer.ln_f.weight": "m",
    "lm_head.weight": "padded/t m",
}
SIZES = {"v": 33, "m": 16, "f": 24, "(h+2g)d/t": (4 + 2 * 2) * 4 // 2, "hd/t": 8, "f/t": 12, "padded/t": 17}
ONE_STAGE = {name for name in TRTLLM if "{L}" in name}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", *models.llama(vocab=33))


def save(folder: Path, tensors: by_hand.Arrays, config: dict[str, object]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def note(folder: Path) -> dict:
    return json.loads((folder / "bringup.json").read_text("utf-8"))


def equal(found: by_hand.Arrays, wanted: by_hand.Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_whole(bringup: Bringup, tmp_path: Path, form: str) -> None:
    """GPT-2's parameters, transposed and named by the graph."""
    tensors, config = models.gpt2()
    out = tmp_path / "out"
    folder = save(tmp_path / "gpt2", tensors, config)
    result = bringup("convert", "--checkpoint", folder, "--format", form, "-o", out)
    assert result.exit_code == 0, result.output
    file = out / f"model.{form}"
    found = load_file(file) if form == "safetensors" else dict(np.load(file))
    equal(found, by_hand.gpt2(tensors, 0, tp=1))
    assert json.loads((out / "config.json").read_text("utf-8")) == config
    assert note(out)["mapping"]["world_size"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "out"]


def test_every_rank_and_one_rank(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    assert bringup("convert", "--checkpoint", llama, "--tp", 2, "--pp", 2, "-o", tmp_path / "all").exit_code == 0
    assert (
        bringup("convert", "--checkpoint", llama, "--tp", 2, "--pp", 2, "--rank", 3, "-o", tmp_path / "3").exit_code
        == 0
    )
    for rank in range(4):
        wanted = by_hand.llama(tensors, rank, tp=2, pp=2, heads=2, layers=2)
        equal(load_file(tmp_path / "all" / f"rank{rank}.safetensors"), wanted)
    equal(load_file(tmp_path / "3" / "rank3.safetensors"), wanted)
    assert [words["rank"] for words in note(tmp_path / "3")["files"].values()] == [3]


def test_experts_by_a_map(bringup: Bringup, tmp_path: Path) -> None:
    tensors, config = models.mixtral(experts=4)
    folder, table = save(tmp_path / "mixtral", tensors, config), tmp_path / "map.json"
    table.write_text(json.dumps({"physical_to_logical_map": [[3, 0, 1, 2, 3, 1]]}), "utf-8")
    result = bringup("convert", "--checkpoint", folder, "--ep", 2, "--expert-map", table, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(2):
        wanted = by_hand.mixtral(tensors, rank, tp=1, ep=2, heads=2, physical=[3, 0, 1, 2, 3, 1])
        equal(load_file(tmp_path / "out" / f"rank{rank}.safetensors"), wanted)
    for text in ('{"a": 1}', "[" * 100_000, "[0, 1, 2, 3", '{"physical_to_logical_map": [0], "a": 0, "a": 0}'):
        table.write_text(text, "utf-8")
        refused = bringup("convert", "--checkpoint", folder, "--ep", 2, "--expert-map", table, "-o", tmp_path / "no")
        assert refused.exit_code == 1
        assert "error[BU138]" in refused.stderr
    table.unlink()
    refused = bringup("convert", "--checkpoint", folder, "--ep", 2, "--expert-map", table, "-o", tmp_path / "no")
    assert refused.exit_code == 2
    assert "error[BU034]" in refused.stderr


@pytest.mark.parametrize("pp", [1, 2])
def test_trtllm(bringup: Bringup, llama: Path, tmp_path: Path, pp: int) -> None:
    """Names and shapes of the published format; what the ranks hold together is the original, bit for bit."""
    tensors = load_file(llama / "model.safetensors")
    out = tmp_path / "trt"
    result = bringup("convert", "--checkpoint", llama, "--to", "trtllm", "--tp", 2, "--pp", pp, "-o", out)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["mapping"] == {"world_size": 2 * pp, "tp_size": 2, "pp_size": pp}
    assert (config["architecture"], config["dtype"], config["vocab_size"]) == ("LlamaForCausalLM", "float32", 33)
    assert (config["num_key_value_heads"], config["head_size"], config["hidden_act"]) == (2, 4, "silu")
    ranks = [load_file(out / f"rank{rank}.safetensors") for rank in range(2 * pp)]
    for rank, arrays in enumerate(ranks):
        stage, layers = rank // 2, range(2 // pp)
        wanted = {name.replace("{L}", str(layer)): axes for name, axes in TRTLLM.items() for layer in layers}
        for name in ("transformer.ln_f.weight", "lm_head.weight"):
            wanted = {n: axes for n, axes in wanted.items() if n != name or stage == pp - 1}
        wanted = {n: axes for n, axes in wanted.items() if "vocab_embedding" not in n or stage == 0}
        shapes = {name: tuple(SIZES[axis] for axis in axes.split()) for name, axes in wanted.items()}
        assert {name: array.shape for name, array in arrays.items()} == shapes
    equal(read_back(ranks, pp), tensors)


def read_back(ranks: list[by_hand.Arrays], pp: int) -> by_hand.Arrays:
    """The original tensors of two ranks in each stage, put together by hand."""
    found: by_hand.Arrays = {"model.embed_tokens.weight": ranks[0]["transformer.vocab_embedding.weight"]}
    found["model.norm.weight"] = ranks[-1]["transformer.ln_f.weight"]
    found["lm_head.weight"] = np.concatenate([ranks[-2]["lm_head.weight"], ranks[-1]["lm_head.weight"]])[:33]
    words = {"mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj"}
    for stage in range(pp):
        pair = ranks[2 * stage : 2 * stage + 2]
        for inner in range(2 // pp):
            theirs, ours = f"transformer.layers.{inner}.", f"model.layers.{stage * (2 // pp) + inner}."
            for norm, name in (("input", "input"), ("post", "post_attention")):
                found[f"{ours}{name}_layernorm.weight"] = pair[0][f"{theirs}{norm}_layernorm.weight"]
            for w in ("weight", "bias"):
                q, k, v = zip(*(np.split(rank[f"{theirs}attention.qkv.{w}"], [8, 12]) for rank in pair), strict=True)
                for x, parts in (("q", q), ("k", k), ("v", v)):
                    found[f"{ours}self_attn.{x}_proj.{w}"] = np.concatenate(parts)
                for word, name in words.items():
                    found[f"{ours}{name}.{w}"] = np.concatenate([rank[f"{theirs}{word}.{w}"] for rank in pair])
            for word, name in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
                parts = [rank[f"{theirs}{word}.weight"] for rank in pair]
                found[f"{ours}{name}.weight"] = np.concatenate(parts, axis=1)
                assert np.array_equal(pair[0][f"{theirs}{word}.bias"], pair[1][f"{theirs}{word}.bias"])
                found[f"{ours}{name}.bias"] = pair[0][f"{theirs}{word}.bias"]
    return found


def test_sharded_state(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    """vLLM's model of a rank: q, k and v fused, gate and up fused, the vocabulary padded to 64, each bias whole."""
    tensors = load_file(llama / "model.safetensors")
    result = bringup("convert", "--checkpoint", llama, "--to", "sharded_state", "--tp", 2, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(2):
        part = by_hand.llama(tensors, rank, tp=2, pp=1, heads=2, layers=2, multiple=64)
        for layer in range(2):
            p = f"model.layers.{layer}."
            for w in ("weight", "bias"):
                qkv = [part.pop(f"{p}self_attn.{x}_proj.{w}") for x in "qkv"]
                both = [part.pop(f"{p}mlp.{x}_proj.{w}") for x in ("gate", "up")]
                part[f"{p}self_attn.qkv_proj.{w}"] = np.concatenate(qkv)
                part[f"{p}mlp.gate_up_proj.{w}"] = np.concatenate(both)
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                part[f"{p}{name}.bias"] = tensors[f"{p}{name}.bias"]
        equal(load_file(tmp_path / "out" / f"model-rank-{rank}-part-0.safetensors"), part)


def test_sharded_state_of_a_tied_head(bringup: Bringup, tmp_path: Path) -> None:
    tensors, config = models.llama(tie_word_embeddings=True)
    del tensors["lm_head.weight"]
    folder = save(tmp_path / "tied", tensors, config)
    assert bringup("convert", "--checkpoint", folder, "--to", "sharded_state", "-o", tmp_path / "out").exit_code == 0
    names = load_file(tmp_path / "out" / "model-rank-0-part-0.safetensors").keys()
    assert "lm_head.weight" in names
    assert "model.embed_tokens.weight" not in names


@pytest.mark.parametrize("to", ["graph", "trtllm"])
def test_a_divided_checkpoint_passes_through(bringup: Bringup, llama: Path, tmp_path: Path, to: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert bringup("convert", "--checkpoint", llama, "--to", to, "--tp", 2, "-o", first).exit_code == 0
    if to == "trtllm":  # as another program writes it
        (first / "bringup.json").unlink()
    result = bringup("convert", "--checkpoint", first, "--to", to, "--tp", 2, "--rank", 1, "-o", second)
    assert result.exit_code == 0, result.output
    assert (second / "rank1.safetensors").read_bytes() == (first / "rank1.safetensors").read_bytes()
    assert sorted(path.name for path in second.iterdir()) == ["bringup.json", "config.json", "rank1.safetensors"]
    if to == "graph":  # TensorRT-LLM's is read as a checkpoint: tests/convert/test_ranks_back.py
        refused = bringup("convert", "--checkpoint", first, "--to", to, "--tp", 4, "-o", tmp_path / "third")
        assert refused.exit_code == 1
        assert f"error[BU142]: `{first}` is written for {to} and tp 2, ep 1, pp 1" in refused.stderr


def test_a_copy_that_would_not_be_what_was_requested(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert bringup("convert", "--checkpoint", llama, "--tp", 2, "-o", first).exit_code == 0
    refused: list[list[object]] = [
        ["--vocab-multiple", 64], ["--format", "npz"], ["--dtype", "float16"], ["--redundant-experts", 2],
        ["--also", f"{llama}:x."], ["--config", llama / "config.json"], ["--to", "layout"],
    ]  # fmt: skip
    for words in refused:
        result = bringup("convert", "--checkpoint", first, "--tp", 2, *words, "-o", tmp_path / "out")
        assert (result.exit_code, "error[BU142]" in result.stderr) == (1, True), (words, result.output)
        assert not (tmp_path / "out").exists()
    (first / "rank1.safetensors").unlink()
    text = note(first)
    del text["files"]["rank1.safetensors"]
    (first / "bringup.json").write_text(json.dumps(text), "utf-8")
    result = bringup("convert", "--checkpoint", first, "--tp", 2, "-o", tmp_path / "out")
    assert "has no file of rank 1" in result.stderr
    assert bringup("convert", "--checkpoint", first, "--tp", 2, "--rank", 0, "-o", tmp_path / "out").exit_code == 0


def test_a_copy_of_a_target_s_layout(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    words = ("convert", "--to", "layout", "--tp", 1)
    first = tmp_path / "first"
    assert bringup(*words, "--checkpoint", llama, "--target", "cpu", "-o", first).exit_code == 0
    assert bringup(*words, "--checkpoint", first, "--target", "cpu", "-o", tmp_path / "a").exit_code == 0
    refused = bringup(*words, "--checkpoint", first, "--target", "torch", "-o", tmp_path / "b")
    assert (refused.exit_code, "written for target cpu" in refused.stderr) == (1, True), refused.output


@pytest.mark.parametrize(
    "files",
    [
        {"../llama/model.safetensors": {"rank": 0}},
        {"rank0.safetensors": {}},
        ["rank0.safetensors"],
        {"x": None},
        {"rank0.safetensors": {"rank": float("inf")}},
    ],
)
def test_a_folder_that_lies_about_its_files(bringup: Bringup, llama: Path, tmp_path: Path, files: object) -> None:
    divided = tmp_path / "divided"
    assert bringup("convert", "--checkpoint", llama, "--tp", 2, "-o", divided).exit_code == 0
    (divided / "bringup.json").write_text(json.dumps(note(divided) | {"files": files}), "utf-8")
    result = bringup("convert", "--checkpoint", divided, "--tp", 2, "-o", tmp_path / "out")
    assert (result.exit_code, "error[BU142]" in result.stderr) == (1, True), result.output
    assert not (tmp_path / "out").exists()


def test_what_is_there_stays(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bringup("convert", "--checkpoint", llama, "-o", out).exit_code == 0
    before = (out / "model.safetensors").stat().st_ino
    refused = bringup("convert", "--checkpoint", llama, "-o", out)
    assert (refused.exit_code, "error[BU011]" in refused.stderr) == (2, True)
    assert (out / "model.safetensors").stat().st_ino == before
    assert bringup("convert", "--checkpoint", llama, "-o", out, "--force").exit_code == 0
    other = bringup("convert", "--checkpoint", llama, "-o", llama, "--force")
    assert (other.exit_code, "is not a folder that this command wrote" in other.stderr) == (2, True)


def test_a_failure_leaves_nothing(bringup: Bringup, llama: Path, tmp_path: Path, monkeypatch) -> None:
    from bringup.compile.convert import shards

    def stop(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "fill", stop)
    refused = bringup("convert", "--checkpoint", llama, "-o", tmp_path / "out")
    assert (refused.exit_code, "error[BU902]" in refused.stderr) == (3, True)
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--format", "npz", "--dtype", "bfloat16"], "BU139", "is bfloat16, which .npz files do not have"),
        (["--tp", "3"], "BU130", "does not divide among 3 ranks"),
        (["--tp", "2", "--rank", "2"], "BU045", "rank 2 is out of range"),
        (["--to", "graphs"], "BU024", "invalid value `graphs` for `--to`"),
        (["--stage-layers", "a"], "BU024", "not a list of integers"),
        (["--stage-layers", "\u00b2,1"], "BU024", "not a list of integers"),
    ],
)
def test_refusals(bringup: Bringup, llama: Path, tmp_path: Path, words: list[str], code: str, said: str) -> None:
    result = bringup("convert", "--checkpoint", llama, *words, "-o", tmp_path / "out")
    assert f"error[{code}]" in result.stderr
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_form_that_a_family_lacks(bringup: Bringup, tmp_path: Path) -> None:
    folder = save(tmp_path / "phi3", *models.phi3())
    result = bringup("convert", "--checkpoint", folder, "--to", "trtllm", "-o", tmp_path / "out")
    assert "error[BU140]: the form `trtllm` is not defined for `phi3`" in result.stderr
    folder = save(tmp_path / "bloom", *models.bloom())
    result = bringup("convert", "--checkpoint", folder, "--to", "sharded_state", "-o", tmp_path / "out")
    assert "error[BU140]: the form `sharded_state` is not defined for `bloom`" in result.stderr
