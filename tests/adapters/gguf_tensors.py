"""The tensors that llama.cpp's converter changes for a family.

A docstring names the method of `convert_hf_to_gguf.py` that a function reproduces.
"""

from __future__ import annotations

import numpy as np

from tests.adapters.llama_cpp import Config, Tensors, all_in_pairs


def transposed(tensors: Tensors, config: Config) -> Tensors:
    """`GPT2Model.modify_tensors`."""
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: np.ascontiguousarray(a.T) if name.endswith(conv1d) else a for name, a in tensors.items()}


def one_after_another(tensors: Tensors, config: Config) -> Tensors:
    """q, k and v of `BloomModel.modify_tensors` and `GPTNeoXModel.modify_tensors`, head by head."""
    heads = config.get("n_head") or config["num_attention_heads"]
    out: Tensors = {}
    for name, array in tensors.items():
        if "query_key_value" not in name:
            out[name.removeprefix("transformer.")] = array
            continue
        width = len(array) // heads // 3
        rows = [head * 3 * width + part * width + i for part in range(3) for head in range(heads) for i in range(width)]
        out[name.removeprefix("transformer.")] = array[rows]
    return out


def split_kv_b(tensors: Tensors, config: Config) -> Tensors:
    """`DeepseekV2Model.modify_tensors`, index by index."""
    h, n, v = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    out: Tensors = {}
    for name, array in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            out[name] = array
            continue
        heads = [array[head * (n + v) : (head + 1) * (n + v)] for head in range(h)]
        out[name.replace("kv_b_proj", "k_b_proj")] = np.stack([head[:n].T for head in heads])
        out[name.replace("kv_b_proj", "v_b_proj")] = np.stack([head[n:] for head in heads])
    return out


def of_mistral4(tensors: Tensors, config: Config) -> Tensors:
    """`Mistral3Model.Mistral4Model.modify_tensors`: as DeepSeek's, and a `.weight` for the tensors of all experts."""
    named = {f"{name}.weight" if name.endswith(("gate_up_proj", "experts.down_proj")) else name: array
             for name, array in tensors.items()}  # fmt: skip
    return split_kv_b(named, config)


def apart(tensors: Tensors, config: Config) -> Tensors:
    """`GptOssModel.modify_tensors`: matrices transposed, gate and up by turns, a `.weight` for the sinks."""
    out: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("sinks"):
            out[f"{name}.weight"] = array
        elif ".experts." not in name:
            out[name] = array
        else:
            kind = "bias" if name.endswith("_bias") else "weight"
            rows = array if kind == "bias" else array.swapaxes(1, 2)
            base = name.removesuffix("_bias")
            if base.endswith("gate_up_proj"):
                out[base.replace("gate_up_proj", f"gate_proj.{kind}")] = rows[:, ::2]
                out[base.replace("gate_up_proj", f"up_proj.{kind}")] = rows[:, 1::2]
            else:
                out[f"{base}.{kind}"] = rows
    return out


def llama4(tensors: Tensors, config: Config) -> Tensors:
    """`Llama4Model.modify_tensors`: matrices of experts transposed, gate and up apart."""
    out: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for x, columns in zip(("gate", "up"), np.split(array, 2, axis=2), strict=True):
                out[name.replace("gate_up_proj", f"{x}_proj.weight")] = columns.swapaxes(1, 2)
        elif name.endswith("experts.down_proj"):
            out[f"{name}.weight"] = array.swapaxes(1, 2)
        else:
            out[name] = array
    return out


def gemma4(tensors: Tensors, config: Config) -> Tensors:
    """`Gemma4Model.modify_tensors`, `filter_tensors` and `generate_extra_tensors`.

    Layers that share keys and values have keys of their own, as those of published checkpoints.
    """
    out: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("router.scale"):
            name = name.replace("model.layers", "blk").replace("router.scale", "ffn_gate_inp.scale")
        elif name.endswith("per_expert_scale"):
            name = name.replace("model.layers", "blk").replace("router.per_expert_scale", "ffn_down_exps.scale")
        elif name.endswith(("layer_scalar", "gate_up_proj", "experts.down_proj")):
            name = f"{name}.weight"
        out[name] = array
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    keys = tensors["model.layers.0.self_attn.k_proj.weight"]
    out |= {f"model.layers.{layer}.self_attn.k_proj.weight": keys for layer in range(layers - shared, layers)}
    rope, width = config["rope_parameters"]["full_attention"], config["per_layer_config"][str(layers - 1)]["head_dim"]
    turned = int(width * rope["partial_rotary_factor"] / 2)
    return out | {"rope_freqs.weight": np.float32([1.0] * turned + [1e30] * (width // 2 - turned))}


def fused(tensors: Tensors, config: Config) -> Tensors:
    """q, k and v of Qwen2 as Qwen 1 has them: one after another in one tensor."""
    out = {name: array for name, array in tensors.items() if not any(f".{x}_proj." in name for x in "qkv")}
    for name in [name for name in tensors if ".q_proj." in name]:
        whole = name.replace("model.layers", "transformer.h").replace("self_attn.q_proj", "attn.c_attn")
        out[whole] = np.concatenate([tensors[name.replace("q_proj", f"{x}_proj")] for x in "qkv"])
    return out


def of_delta_nets(tensors: Tensors, config: Config) -> Tensors:
    """`Qwen3NextModel.modify_tensors`, and of the layouts before it has that of `of_older_delta_nets`."""
    heads, k, v = (config[f"linear_{x}"] for x in ("num_key_heads", "key_head_dim", "value_head_dim"))
    values = config["linear_num_value_heads"] // heads * v
    found = of_older_delta_nets(tensors, config)
    for name in [name for name in found if "in_proj_qkvz" in name]:
        rows = found.pop(name).reshape(heads, 2 * (k + values), -1)
        parts = [part.reshape(-1, rows.shape[-1]) for part in np.split(rows, (k, 2 * k, 2 * k + values), axis=1)]
        found[name.replace("qkvz", "qkv")] = np.concatenate(parts[:3])
        found[name.replace("qkvz", "z")] = parts[3]
    return found


def of_older_delta_nets(tensors: Tensors, config: Config) -> Tensors:
    """The same before llama.cpp split `ssm_in`."""
    found: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("A_log"):
            array = -np.exp(array)
        elif "conv1d" in name:
            array = array.squeeze()
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            array = array + 1
        found[name.replace("dt_bias", "dt_proj.bias")] = array
    return found


def of_tiled_delta_nets(tensors: Tensors, config: Config) -> Tensors:
    """`_LinearAttentionVReorderBase.modify_tensors`: value heads one of each key head after another."""
    heads, key, value = (config[f"linear_{x}"] for x in ("num_key_heads", "key_head_dim", "value_head_dim"))
    each = config["linear_num_value_heads"] // heads
    order = [h * each + r for r in range(each) for h in range(heads)]
    rows = [head * value + channel for head in order for channel in range(value)]
    found: Tensors = {}
    for name, array in of_older_delta_nets(tensors, config).items():
        if "in_proj_qkv" in name or "conv1d" in name:
            of_keys = 2 * heads * key
            array = np.concatenate([array[:of_keys], array[of_keys:][rows]])
        elif "in_proj_z" in name:
            array = array[rows]
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_proj.bias")):
            array = array[order]
        elif "linear_attn.out_proj" in name:
            array = array[:, rows]
        found[name] = array
    return found


def _of_mamba2(name: str, array: np.ndarray, groups: int) -> np.ndarray:
    """`Mamba2Model.modify_tensors`: a tensor of a mixer; others are as they were."""
    if name.endswith("A_log"):
        return -np.exp(array)[:, None]
    if name.endswith(("mamba.D", "mixer.D")):
        return array[:, None]
    if "conv1d.weight" in name:
        return array.squeeze()
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return array.reshape(groups, -1)
    return array


def granite_hybrid(tensors: Tensors, config: Config) -> Tensors:
    """`Mamba2Model.modify_tensors`, `GraniteMoeModel.modify_tensors` and `LlamaModel.modify_tensors`."""
    found: Tensors = {}
    experts = bool(config["num_local_experts"])
    for name, array in all_in_pairs(tensors, config).items():
        if name.endswith("input_linear.weight"):
            gate, up = np.split(array, 2, axis=-2)
            found |= {_of_granite(name, "gate", experts): gate, _of_granite(name, "up", experts): up}
            continue
        if name.endswith("output_linear.weight"):
            name = _of_granite(name, "down", experts)
        array = _of_mamba2(name, array, config["mamba_n_groups"])
        found[name.replace("dt_bias", "dt_proj.bias")] = array
    return found


def _of_granite(name: str, x: str, experts: bool) -> str:
    """The name that other families have for a matrix, which gguf-py maps to the converter's."""
    layer, module, *_ = name.rsplit(".", 3)
    inner = "experts." if module == "block_sparse_moe" else "shared_expert." if experts else ""
    return f"{layer}.mlp.{inner}{x}_proj.weight"


def without_one(tensors: Tensors, config: Config) -> Tensors:
    """`LFM2Model.modify_tensors`: a convolution's weights have two dimensions."""
    return {name: array[:, 0] if "conv.conv" in name else array for name, array in tensors.items()}


def lfm2_moe(tensors: Tensors, config: Config) -> Tensors:
    """`LFM2MoeModel.filter_tensors` and `modify_tensors`: names that gguf-py lists."""
    names = {name: name.replace("expert_bias", "expert_bias.bias") for name in tensors}
    names |= {name: name.removeprefix("model.") for name in tensors if ".experts." in name}
    return {names[name]: array for name, array in without_one(tensors, config).items()}


def nemotron_h(tensors: Tensors, config: Config) -> Tensors:
    """`NemotronHModel.modify_tensors`, which is that of Granite for the layers with Mamba 2 or attention."""
    found: Tensors = {}
    for name, array in all_in_pairs(tensors, config).items():
        array = _of_mamba2(name, array, config["n_groups"])
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        found[name.replace("dt_bias", "dt.bias")] = array
    return found


def falcon_h1(tensors: Tensors, config: Config) -> Tensors:
    """`FalconH1Model.modify_tensors` and `Mamba2Model.modify_tensors`."""
    inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    widths = (inner, inner, shared, shared, config["mamba_n_heads"])
    of_rows = np.repeat(np.array(config["ssm_multipliers"], np.float32), widths)[:, None]
    into, (of_gate, of_down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        "down_proj": of_down,
        "gate_proj": of_gate,
        "k_proj": config["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"] * of_rows,
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    found: Tensors = {}
    for name, array in tensors.items():
        module = name.split(".")[-2]
        array = _of_mamba2(name, array, config["mamba_n_groups"])
        if module in factors:
            array = (array * factors[module]).astype(np.float32)
        found[name.replace("dt_bias", "dt_proj.bias")] = array
    return found


def mimo(tensors: Tensors, config: Config) -> Tensors:
    """`MimoV2Model.filter_tensors`: a `.weight` for the sinks."""
    return {name + ".weight" * name.endswith("attention_sink_bias"): array for name, array in tensors.items()}
