"""Eight published layouts, each as a table of rules and as handwritten numpy code.

Each function returns (parameters, adapter, tensors, expected arrays, tensor-parallel axes) for random sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bringup.adapters.algebra.expr import S, cat, packed, stack
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.core.module import Param
from bringup.graphs.core.signature import Declared, Signature


@dataclass
class Case:
    signature: Signature
    adapter: Adapter
    tensors: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    parallel: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Checkpoint:
        return dict_checkpoint(self.tensors, {})


def declare(**params: Param) -> Signature:
    """A signature from leaves; `__` in a keyword stands for a dot."""
    named = {name.replace("__", "."): leaf for name, leaf in params.items()}
    rows = {}
    for name, leaf in named.items():
        rows[name] = Declared(name, leaf.axes, leaf.declared_dtype or "float32", leaf.pack)
    return Signature(rows)


def noise(rng: np.random.Generator, *shape: int, dtype: object = np.float32) -> np.ndarray:
    """Distinct bit patterns, so that a misplaced element shows."""
    if np.dtype(dtype).itemsize == 1:
        return rng.integers(0, 256, shape, np.uint8).view(dtype)
    return (rng.permutation(int(np.prod(shape))).astype(np.float32) + 1).astype(dtype).reshape(shape)


def gpt2_conv1d(rng: np.random.Generator, h: int, d: int) -> Case:
    m = h * d
    table = Adapter("gpt2", defaults=("in out",))
    table["{x:c_attn|c_proj}.{p:weight|bias}"] = S("{x}.{p}")
    w, b, square = noise(rng, m, 3 * m), noise(rng, 3 * m), noise(rng, m, m)
    return Case(
        declare(
            c_attn__weight=Param("out:(t h d) in:m", t=3, h=h, d=d, m=m),
            c_attn__bias=Param("out:(t h d)", t=3, h=h, d=d),
            c_proj__weight=Param("out:m in:(h d)", h=h, d=d, m=m),
        ),
        table,
        {"c_attn.weight": w, "c_attn.bias": b, "c_proj.weight": square},
        {"c_attn.weight": w.T, "c_attn.bias": b, "c_proj.weight": square.T},
        ("h",),
    )


def fused_gqa(rng: np.random.Generator, h: int, d: int) -> Case:
    g, m = h // 2 if h % 4 == 0 else 1, 5
    table = Adapter("qkv")
    table["qkv.weight"] = cat(S("q.weight", "(h d) m"), *(S(f"{x}.weight", "(g d) m") for x in "kv"), axis="out")
    table["qkv.bias"] = cat(S("q.bias", "(h d)"), *(S(f"{x}.bias", "(g d)") for x in "kv"), axis="out")
    q, k, v = noise(rng, h * d, m), noise(rng, g * d, m), noise(rng, g * d, m)
    bias = [noise(rng, n * d) for n in (h, g, g)]
    sizes = {"h": h, "g": g, "d": d}
    return Case(
        declare(
            qkv__weight=Param("out:(q:(h d) | k:(g d) | v:(g d)) in:m", m=m, **sizes),
            qkv__bias=Param("out:(q:(h d) | k:(g d) | v:(g d))", **sizes),
        ),
        table,
        {"q.weight": q, "k.weight": k, "v.weight": v} | {f"{x}.bias": b for x, b in zip("qkv", bias, strict=True)},
        {"qkv.weight": np.concatenate([q, k, v]), "qkv.bias": np.concatenate(bias)},
        ("h", "g"),
    )


def gate_up(rng: np.random.Generator, h: int, d: int) -> Case:
    f, m = h * 2, d
    table = Adapter("gate up", defaults=("out in",))
    table["gate_up.weight"] = cat(S("gate.weight", "f m"), S("up.weight", "f m"), axis="out")
    gate, up = noise(rng, f, m), noise(rng, f, m)
    return Case(
        declare(gate_up__weight=Param("out:(gate:f | up:f) in:m", f=f, m=m)),
        table,
        {"gate.weight": gate, "up.weight": up},
        {"gate_up.weight": np.concatenate([gate, up])},
        ("f",),
    )


def bloom_qkv(rng: np.random.Generator, h: int, d: int) -> Case:
    m = h * d
    table = Adapter("bloom")
    table["qkv.weight"] = S("query_key_value.weight", "(h t d) m")
    table["qkv.bias"] = S("query_key_value.bias", "(h t d)")
    w, b = noise(rng, 3 * m, m), noise(rng, 3 * m)
    return Case(
        declare(
            qkv__weight=Param("out:(t h d) in:m", t=3, h=h, d=d, m=m),
            qkv__bias=Param("out:(t h d)", t=3, h=h, d=d),
        ),
        table,
        {"query_key_value.weight": w, "query_key_value.bias": b},
        {
            "qkv.weight": w.reshape(h, 3, d, m).swapaxes(0, 1).reshape(3 * m, m),
            "qkv.bias": b.reshape(h, 3, d).swapaxes(0, 1).reshape(-1),
        },
        ("h",),
    )


def neox_qkv(rng: np.random.Generator, h: int, d: int) -> Case:
    """GPT-NeoX interleaves as BLOOM does; here q, k and v come apart."""
    m, table = h * d, Adapter("neox")
    for i, x in enumerate("qkv"):
        table[f"{x}.weight"] = S("query_key_value.weight").mv("(h t d) m -> t (h d) m", t=3).at("t", i)
        table[f"{x}.bias"] = S("query_key_value.bias").mv("(h t d) -> t (h d)", t=3).at("t", i)
    w, b = noise(rng, 3 * m, m), noise(rng, 3 * m)
    apart, apart_bias = w.reshape(h, 3, d, m), b.reshape(h, 3, d)
    expected = {f"{x}.weight": apart[:, i].reshape(m, m) for i, x in enumerate("qkv")}
    expected |= {f"{x}.bias": apart_bias[:, i].reshape(m) for i, x in enumerate("qkv")}
    params = {f"{x}__weight": Param("out:(h d) in:m", h=h, d=d, m=m) for x in "qkv"}
    params |= {f"{x}__bias": Param("out:(h d)", h=h, d=d) for x in "qkv"}
    tensors = {"query_key_value.weight": w, "query_key_value.bias": b}
    return Case(declare(**params), table, tensors, expected, ("h",))


def mixtral_experts(rng: np.random.Generator, h: int, d: int) -> Case:
    e, f, m = h + 1, 4, d
    table = Adapter("mixtral", defaults=("out in",))
    w1, w3 = S("experts.{E}.w1.weight", "f m"), S("experts.{E}.w3.weight", "f m")
    table["w13"] = stack(cat(w1, w3, axis="out"), over="E", n=e)
    table["w2"] = stack(S("experts.{E}.w2.weight", "m f"), over="E", n=e)
    tensors = {f"experts.{i}.{w}.weight": noise(rng, f, m) + 100 * i for i in range(e) for w in ("w1", "w3")}
    tensors |= {f"experts.{i}.w2.weight": noise(rng, m, f) + 100 * i for i in range(e)}
    both = [np.concatenate([tensors[f"experts.{i}.{w}.weight"] for w in ("w1", "w3")]) for i in range(e)]
    return Case(
        declare(
            w13=Param("e out:(gate:f | up:f) in:m", e=e, f=f, m=m),
            w2=Param("e out:m in:f", e=e, f=f, m=m),
        ),
        table,
        tensors,
        {"w13": np.stack(both), "w2": np.stack([tensors[f"experts.{i}.w2.weight"] for i in range(e)])},
        ("f",),
    )


def fp8_blocks(rng: np.random.Generator, h: int, d: int) -> Case:
    """DeepSeek's kv_b: k and v rows of each head apart, payload and 128-block scales by one rule a part."""
    k, v, m = 128 * d, 128, 256
    table = Adapter("fp8")
    both = S("kv_b.{p}", "(h x) m", x=k + v).mv("(h x) m -> h x m", x=k + v).split("x", k, v)
    for x, part in zip("kv", both, strict=True):
        table[f"{x}.{{p:weight|weight_scale_inv}}"] = packed(
            part.mv("h d m -> (h d) m"), weight_scale_inv={"x": 128, "m": 128}
        )
    fp8 = ml_dtypes.float8_e4m3fn
    payload, scales = noise(rng, h * (k + v), m, dtype=fp8), noise(rng, h * (d + 1), 2)
    rows = payload.view(np.uint8).reshape(h, k + v, m)
    blocks = scales.reshape(h, d + 1, 2)
    return Case(
        declare(
            k__weight=Param("out:(h d) in:m", h=h, d=k, m=m, dtype="float8_e4m3fn"),
            k__weight_scale_inv=Param("out:(h d) in:m", h=h, d=d, m=2),
            v__weight=Param("out:(h d) in:m", h=h, d=v, m=m, dtype="float8_e4m3fn"),
            v__weight_scale_inv=Param("out:(h d) in:m", h=h, d=1, m=2),
        ),
        table,
        {"kv_b.weight": payload, "kv_b.weight_scale_inv": scales},
        {
            "k.weight": rows[:, :k].reshape(-1, m).view(fp8),
            "v.weight": rows[:, k:].reshape(-1, m).view(fp8),
            "k.weight_scale_inv": blocks[:, :d].reshape(-1, 2),
            "v.weight_scale_inv": blocks[:, d:].reshape(-1, 2),
        },
        ("h",),
    )


def mxfp4_experts(rng: np.random.Generator, h: int, d: int) -> Case:
    """GPT-OSS: gate and up rows interleaved, 32 values to a block of 16 bytes, one e8m0 exponent a block."""
    e, i, b = h, d, 2
    table = Adapter("gpt-oss")
    for at, x in enumerate(("gate", "up")):
        blocks = S("gate_up_proj_blocks").mv("e (i two) b k -> two e i (b k)", two=2).at("two", at)
        table[f"{x}.q"] = blocks.bits("float4_e2m1fn", "n").mv("e i byte n -> e f:i in:(byte n)")
        exponents = S("gate_up_proj_scales").mv("e (i two) b -> two e i b", two=2).at("two", at)
        table[f"{x}.scale"] = exponents.bits("float8_e8m0fnu").mv("e i b -> e f:i in:b")
    blocks, scales = noise(rng, e, 2 * i, b, 16, dtype=np.uint8), noise(rng, e, 2 * i, b, dtype=np.uint8)
    params, expected = {}, {}
    for at, x in enumerate(("gate", "up")):
        params[f"{x}__q"] = Param("e f in", e=e, f=i, **{"in": b * 32}, dtype="float4_e2m1fn", pack="in:2")
        params[f"{x}__scale"] = Param("e f in", e=e, f=i, **{"in": b}, dtype="float8_e8m0fnu")
        expected[f"{x}.q"] = blocks[:, at::2].reshape(e, i, b * 16)
        expected[f"{x}.scale"] = scales[:, at::2].view(ml_dtypes.float8_e8m0fnu)
    tensors = {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales}
    return Case(declare(**params), table, tensors, expected, ("f",))


LAYOUTS = (
    gpt2_conv1d,
    fused_gqa,
    gate_up,
    bloom_qkv,
    neox_qkv,
    mixtral_experts,
    fp8_blocks,
    mxfp4_experts,
)
