"""Adapters as other programs write them, against the same adapter in peft's files.

Their tensors are laid out here by what those programs compute: mlx-lm's `LoRALinear`, `LoRASwitchLinear` and
`LoRAEmbedding` (mlx_lm/tuner/lora.py); llama.cpp's convert_lora_to_gguf.py; Megatron-Core's fused matrices.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from bringup.adapters.lora.files import open_lora
from bringup.adapters.lora.megatron import read_run_config
from bringup.adapters.lora.merge import delta
from bringup.compile.job import Job, open_job
from bringup.compile.lora.export import merge_lora
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.diagnostics import BringupError
from tests.adapters import llama_cpp
from tests.adapters.llama_cpp import in_pairs
from tests.lora.written import Case, saved_base, write

STEM = "base_model.model."
LLAMA = Case("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "down_proj", "embed_tokens"]})
SCALE = 2.0


def changes(job: Job, folder: Path) -> dict[str, np.ndarray]:
    """What an adapter adds to each parameter."""
    loaded = load_lora(job, folder)
    assert [finding.code for finding in loaded.findings] == []
    arrays = loaded.lora.arrays(loaded.files.checkpoint)
    return {site: delta(factors, arrays) for site, factors in loaded.lora.sites.items()}


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for site, change in wanted.items():
        np.testing.assert_allclose(found[site], change, rtol=1e-5, atol=1e-6, err_msg=site)


def factors(folder: Path) -> dict[str, np.ndarray]:
    """The factors that peft saved, by module and side: `model.layers.0.self_attn.q_proj.A`."""
    found: dict[str, np.ndarray] = {}
    for name, array in load_file(folder / "adapter_model.safetensors").items():
        module, lora, side = name.removeprefix(STEM).removesuffix(".weight").rpartition(".lora_")
        if lora:
            found[f"{module}.{side[-1]}"] = array
    return found


def save(folder: Path, tensors: dict[str, np.ndarray], words: dict, name: str = "adapters.safetensors") -> Path:
    folder.mkdir()
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / name)
    (folder / "adapter_config.json").write_text(json.dumps(words))
    return folder


def mlx_words(**more: object) -> dict:
    return {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": SCALE, "dropout": 0},
        **more,
    }


def test_mlx(tmp_path):
    """y = x W + scale · (x A) B: both are stored the other way round."""
    written = write(LLAMA, tmp_path)
    job = open_job(checkpoint=str(written.base))
    tensors = {f"{name[:-2]}.lora_{name[-1].lower()}": array.T for name, array in factors(written.lora).items()}
    folder = save(tmp_path / "mlx", tensors, mlx_words(model=str(written.base)))
    assert_equal(changes(job, folder), changes(job, written.lora))
    assert open_lora(folder).base == str(written.base)


def test_mlx_dora(tmp_path):
    """`DoRALinear.fuse`: the magnitudes have the name `m`. peft's of the same values."""
    words = {"r": 4, "lora_alpha": 4 * SCALE, "target_modules": ["q_proj", "down_proj"], "use_dora": True}
    written = write(Case("llama", words), tmp_path)
    names = {"lora_magnitude_vector": "m", "lora_A.weight": "lora_a", "lora_B.weight": "lora_b"}
    tensors = {}
    for name, array in load_file(written.lora / "adapter_model.safetensors").items():
        module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        tensors[f"{module}.{names[f'lora_{kind}']}"] = array.T
    job = open_job(checkpoint=str(written.base))
    folder = save(tmp_path / "mlx", tensors, mlx_words(fine_tune_type="dora"))
    found, wanted = (merged(job, load_lora(job, each)) for each in (folder, written.lora))
    assert_equal(found, wanted)
    with pytest.raises(BringupError, match=r"BU161.*only be merged"):
        load_lora(job, folder).refuse_if_merged_only()


def test_mlx_changes_a_tied_head_with_the_embedding(tmp_path):
    """`LoRAEmbedding.as_linear`."""
    case = Case("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens"]}, {"tie_word_embeddings": True})
    written = write(case, tmp_path)
    job = open_job(checkpoint=str(written.base))
    tensors = {f"{name[:-2]}.lora_{name[-1].lower()}": array.T for name, array in factors(written.lora).items()}
    found = changes(job, save(tmp_path / "mlx", tensors, mlx_words()))
    (wanted,) = changes(job, written.lora).values()
    assert_equal(found, {"model.embed_tokens.weight": wanted, "lm_head.weight": wanted})
    merge_lora(job, load_lora(job, tmp_path / "mlx"), tmp_path / "merged")
    name = "model.embed_tokens.weight"
    before, after = (load_file(folder / "model.safetensors")[name] for folder in (written.base, tmp_path / "merged"))
    np.testing.assert_allclose(after, before + wanted, rtol=1e-5, atol=1e-6)


def test_mlx_experts(tmp_path):
    """`LoRASwitchLinear`: A [e, rank, in], B [e, out, rank]."""
    saved_base(Case("mixtral", {}), tmp_path / "base")
    job = open_job(checkpoint=str(tmp_path / "base"))
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 4, 32), (4, 48, 4)))
    module = "model.layers.1.block_sparse_moe.switch_mlp.up_proj"
    folder = save(tmp_path / "mlx", {f"{module}.lora_a": a, f"{module}.lora_b": b}, mlx_words())
    assert_equal(changes(job, folder), {"model.layers.1.mlp.experts.up_proj": SCALE * np.einsum("eor,eri->eoi", b, a)})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"fine_tune_type": "full"}, "BU161"),
        ({"fine_tune_type": "dora"}, "BU163"),
        ({"lora_parameters": {}}, "BU160"),
        ({"lora_parameters": {"rank": 10**400, "scale": SCALE}}, "BU160"),
        ({"lora_parameters": {"rank": 4, "scale": float("nan")}}, "BU160"),
    ],
)
def test_mlx_words_that_are_refused(words, code, tmp_path):
    written = write(LLAMA, tmp_path)
    tensors = {f"{name[:-2]}.lora_{name[-1].lower()}": array.T for name, array in factors(written.lora).items()}
    folder = save(tmp_path / "mlx", tensors, mlx_words(**words))
    with pytest.raises(BringupError, match=code):
        load_lora(open_job(checkpoint=str(written.base)), folder).raise_if_errors()


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down"}


def write_gguf(path: Path, tensors: dict[str, np.ndarray], *, kind: str = "lora", alpha: float = 8.0) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, kind)
    if alpha:
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def of_gguf(folder: Path) -> dict[str, np.ndarray]:
    """q and k in rope pairs, as the base's rows; A of the embedding the other way round."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in factors(folder).items():
        module, side = name[:-2].removeprefix("model."), name[-1]
        if module == "embed_tokens":
            tensors[f"token_embd.weight.lora_{side.lower()}"] = array.T if side == "A" else array
            continue
        _, layer, rest = module.split(".", 2)
        if side == "B" and rest != "mlp.down_proj":
            array = in_pairs(array, 4 if rest == "self_attn.q_proj" else 2)
        tensors[f"blk.{layer}.{GGUF_NAMES[rest]}.weight.lora_{side.lower()}"] = array
    return tensors


def test_gguf(tmp_path):
    written = write(LLAMA, tmp_path)
    job = open_job(checkpoint=str(written.base))
    path = write_gguf(tmp_path / "lora.gguf", of_gguf(written.lora))
    assert_equal(changes(job, path), changes(job, written.lora))


def test_a_base_in_gguf(tmp_path):
    """Adapters of either spelling go to the graph's parameters, whatever form the base's own file has."""
    written = write(LLAMA, tmp_path)

    def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(config["head_dim"])

    base = llama_cpp.convert(
        written.base, tmp_path / "base.gguf", gguf.MODEL_ARCH.LLAMA, tensors=llama_cpp.all_in_pairs, words=words
    )
    path = write_gguf(tmp_path / "lora.gguf", of_gguf(written.lora))
    wanted = changes(open_job(checkpoint=str(written.base)), written.lora)
    job = open_job(checkpoint=str(base))
    assert_equal(changes(job, written.lora), wanted)
    assert_equal(changes(job, path), wanted)


@pytest.mark.parametrize(
    ("family", "options", "code"),
    [
        ("gpt2", {}, "BU162"),
        ("llama", {"kind": "control_vector"}, "BU161"),
        ("llama", {"alpha": 0.0}, "BU160"),
        ("llama", {"alpha": float("nan")}, "BU160"),
    ],
)
def test_gguf_files_that_are_refused(family, options, code, tmp_path):
    written = write(LLAMA, tmp_path)
    saved_base(Case(family, {}), tmp_path / "other")
    path = write_gguf(tmp_path / "lora.gguf", of_gguf(written.lora), **options)
    with pytest.raises(BringupError, match=code):
        load_lora(open_job(checkpoint=str(tmp_path / "other")), path)


def test_factors_in_blocks_are_refused(tmp_path):
    """`convert_lora_to_gguf.py --outtype q8_0`."""
    written = write(LLAMA, tmp_path)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = tmp_path / "lora.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 8.0)
    for name, array in of_gguf(written.lora).items():
        if array.shape[-1] % 32:
            writer.add_tensor(name, np.ascontiguousarray(array))
        else:
            writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = load_lora(open_job(checkpoint=str(written.base)), path)
    assert [finding.code for finding in loaded.findings] == ["BU161"]
    assert loaded.lora.sites == {}


def test_megatron(tmp_path):
    """Heads of `linear_qkv` group by group, written out head by head; the gate before up in `linear_fc1`."""
    saved_base(Case("llama", {}), tmp_path / "base")
    job = open_job(checkpoint=str(tmp_path / "base"))
    random = np.random.default_rng(0)
    d, per_group = 8, 2  # 4 heads of q, 2 of k and of v
    shapes = {"self_attention.linear_qkv": (64, 32), "mlp.linear_fc1": (96, 32), "mlp.linear_fc2": (32, 48)}
    shapes["self_attention.linear_proj"] = (32, 32)
    tensors: dict[str, np.ndarray] = {}
    whole: dict[str, np.ndarray] = {}
    for module, (out, size) in shapes.items():
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((4, size), (out, 4)))
        stem = f"module.decoder.layers.1.{module}.adapter.linear_"
        tensors |= {f"{stem}in.weight": a, f"{stem}out.weight": b}
        whole[module] = SCALE * b @ a
    heads = whole["self_attention.linear_qkv"].reshape(8, d, 32)
    group = [heads[g * (per_group + 2) : (g + 1) * (per_group + 2)] for g in range(2)]
    gate, up = np.split(whole["mlp.linear_fc1"], 2)
    wanted = {
        "self_attn.q_proj": np.concatenate([each[i] for each in group for i in range(per_group)]),
        "self_attn.k_proj": np.concatenate([each[per_group] for each in group]),
        "self_attn.v_proj": np.concatenate([each[per_group + 1] for each in group]),
        "self_attn.o_proj": whole["self_attention.linear_proj"],
        "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": whole["mlp.linear_fc2"],
    }  # fmt: skip
    (tmp_path / "run").mkdir()
    save_file(tensors, tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "run_config.yaml").write_text(
        "model:\n  alpha: 3\npeft:\n  dim: 4\n  alpha: 8\n  dropout: 0.0\n"
    )
    found = changes(job, tmp_path / "run")
    assert_equal(found, {f"model.layers.1.{module}.weight": change for module, change in wanted.items()})


def test_megatron_parts(tmp_path):
    """`CanonicalLoRA`: a pair for each of q, k and v."""
    saved_base(Case("llama", {}), tmp_path / "base")
    job = open_job(checkpoint=str(tmp_path / "base"))
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 32), (16, 4)))
    stem = "decoder.layers.0.self_attention.linear_qkv.adapter.adapter_k.linear_"
    (tmp_path / "run").mkdir()
    save_file({f"{stem}in.weight": a, f"{stem}out.weight": b}, tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "run_config.yaml").write_text("peft:\n  alpha: 8\n  dim: 4\n")
    assert_equal(changes(job, tmp_path / "run"), {"model.layers.0.self_attn.k_proj.weight": SCALE * b @ a})


@pytest.mark.parametrize(
    "words",
    [
        "dim: 4\n  alpha: 1.2.3",
        "dim: 4\n  alpha: .",
        f"dim: {'9' * 5000}\n  alpha: 8",
        f"dim: 4\n  alpha: {'9' * 400}",
        "dim: 0\n  alpha: 8",
    ],
    ids=range(5),
)
def test_a_run_config_without_numbers(words: str, tmp_path: Path) -> None:
    file = tmp_path / "run_config.yaml"
    file.write_text(f"peft:\n  {words}\n")
    with pytest.raises(BringupError, match="BU160"):
        read_run_config(file)


def test_a_torch_file(tmp_path):
    """adapter_model.bin, as older peft writes it."""
    written = write(LLAMA, tmp_path)
    job = open_job(checkpoint=str(written.base))
    wanted = changes(job, written.lora)
    file = written.lora / "adapter_model.safetensors"
    tensors = {name: torch.from_numpy(array) for name, array in load_file(file).items()}
    torch.save(tensors, written.lora / "adapter_model.bin")
    file.unlink()
    assert_equal(changes(job, written.lora), wanted)
