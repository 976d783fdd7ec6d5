"""Adapters by difference: names, rules, functions before and after, and the words of layers' classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from bringup.adapters import Adapter, S, dict_checkpoint, hook, make_plan, materialise, published, reverse, tied
from bringup.adapters.algebra.name_translation import Words
from bringup.adapters.llama import adapter as llama
from bringup.adapters.planning.plan import Plan
from bringup.adapters.sources.dummy import dummy_checkpoint
from bringup.diagnostics import BringupError
from bringup.graphs.core.signature import Signature
from bringup.graphs.layers.linear import Linear
from bringup.graphs.llama import Llama, LlamaConfig

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 16, "intermediate_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
CONFIG = LlamaConfig.from_hf(RAW)
SIGNATURE = Llama(CONFIG).signature()
Arrays = dict[str, np.ndarray]


def tensors(adapter: Adapter, signature: Signature = SIGNATURE) -> Arrays:
    """A checkpoint that an adapter accepts."""
    dummy = dummy_checkpoint(published(signature, adapter), RAW)
    return {name: dummy.read(info) for name, info in dummy.headers.items()}


BASE = tensors(llama(CONFIG))


def planned(
    adapter: Adapter, arrays: Mapping[str, np.ndarray], signature: Signature = SIGNATURE
) -> tuple[Plan, Arrays]:
    checkpoint = dict_checkpoint(dict(arrays), RAW)
    plan = make_plan(signature, adapter, checkpoint.headers)
    assert [problem.message or problem for problem in plan.problems] == []
    assert plan.unread == []
    return plan, materialise(plan, checkpoint)


WANTED = planned(llama(CONFIG), BASE)[1]


def assert_same(arrays: Arrays, wanted: Arrays = WANTED) -> None:
    assert arrays.keys() == wanted.keys()
    assert all(np.array_equal(array, wanted[name]) for name, array in arrays.items())


def assert_back(plan: Plan, arrays: Arrays, stored: Mapping[str, np.ndarray]) -> None:
    back = reverse(plan, arrays)
    assert back.keys() == stored.keys()
    assert all(np.array_equal(array, stored[name]) for name, array in back.items())


@pytest.mark.parametrize(
    ("table", "name", "names"),
    [
        ({"layers": "h"}, "layers.0.layers_x.layers", ("h.0.layers_x.h",)),
        ({"a": "b", "b": "a"}, "a.b.c", ("b.a.c",)),
        ({"a.b": "x", "a": "y"}, "a.b.a.c", ("x.y.c",)),
        ({"a": ""}, "a.b.a", ("b",)),
        ({"a": "b.c"}, "a.d", ("b.c.d",)),
        ({"qkv": ("q", "k"), "weight": ("w", "s")}, "qkv.weight", ("q.w", "q.s", "k.w", "k.s")),
        ({}, "a", ("a",)),
    ],
)
def test_names_are_translated_in_sections(table: Any, name: str, names: tuple[str, ...]) -> None:
    assert Words(table).of(name) == names


def test_only_what_is_called_differently_is_stated() -> None:
    """The text model of LLaVA, as TensorRT-LLM's loader reads it."""
    llava = llama(CONFIG).with_("llava", names={"model": "language_model.model", "lm_head": "language_model.lm_head"})
    stored = {
        f"language_model.{name}" if "lm_head" in name else f"language_model.model.{name}": a for name, a in BASE.items()
    }
    plan, arrays = planned(llava, stored)
    assert_same(arrays)
    assert_back(plan, arrays, stored)
    assert llava.name == "llava"


def test_a_rule_takes_the_place_of_those_that_claim_its_parameters() -> None:
    """The other alternatives of a base's rule still hold; names of the rule are the checkpoint's own."""
    layer = "model.layers.{L}.self_attn."
    fused = S("layers.{L}.attention.qk", "out:(h d | g d) m", d=4, h=4, g=2)
    q, k = fused.split("out", 16, 8)
    derived = llama(CONFIG).with_(
        names={"self_attn": "attention"}, rules={f"{layer}q_proj.weight": q, f"{layer}k_proj.weight": k}
    )
    stored = {name.replace("self_attn", "attention"): array for name, array in BASE.items()}
    for number in range(2):
        at = f"layers.{number}.attention."
        parts = [stored.pop(f"{at}{x}_proj.weight") for x in "qk"]
        stored[at + "qk"] = np.concatenate(parts)
    plan, arrays = planned(derived, stored)
    assert_same(arrays)
    assert_back(plan, arrays, stored)


def test_several_tensors_side_by_side() -> None:
    """One section, several names: the parameter has them one after another along `out`."""
    base = Adapter("fused", defaults=("out in",))
    base["qkv.weight"], base["qkv.bias"] = S("qkv.weight"), S("qkv.bias")
    apart = base.with_(names={"qkv": ("q_proj", "k_proj", "v_proj")})
    module = Linear("out:(x) in:m", x=12, m=3)
    signature = Signature({f"qkv.{n}": d for n, d in signature_of(module).items()})
    random = np.random.default_rng(0)
    sizes = {"q_proj": 6, "k_proj": 4, "v_proj": 2}
    stored = {f"{x}.weight": random.random((n, 3), np.float32) for x, n in sizes.items()}
    stored |= {f"{x}.bias": random.random(n, np.float32) for x, n in sizes.items()}
    plan, arrays = planned(apart, stored, signature)
    assert np.array_equal(arrays["qkv.weight"], np.concatenate([stored[f"{x}.weight"] for x in sizes]))
    assert np.array_equal(arrays["qkv.bias"], np.concatenate([stored[f"{x}.bias"] for x in sizes]))
    assert_back(plan, arrays, stored)


def signature_of(module: Any) -> dict[str, Any]:
    from bringup.graphs.core.module import Param
    from bringup.graphs.core.signature import Declared

    return {
        name: Declared(f"qkv.{name}", leaf.axes, "float32", leaf.pack, leaf.site) for name, leaf in module.leaves(Param)
    }


def test_a_difference_of_a_difference() -> None:
    """The second's words are for names as the first has them; its rules win."""
    first = llama(CONFIG).with_(names={"self_attn": "attention"})
    second = first.with_(names={"attention": "mixer"}, rules={"model.norm.weight": S("final")})
    stored = {name.replace("self_attn", "mixer"): array for name, array in BASE.items()}
    stored["final"] = stored.pop("norm.weight")
    assert_same(planned(second, stored)[1])


def halve(array: np.ndarray) -> np.ndarray:
    return array * np.float32(0.5)


def double(array: np.ndarray) -> np.ndarray:
    return array * np.float32(2)


def test_a_function_before_the_rules() -> None:
    """From what the checkpoint has to what the base's rules read; exact, with its inverse."""
    norm = hook(halve, inputs={"layers.{L}.norm_of_attention": "m"}, outputs={"layers.{L}.input_layernorm.weight": "m"},
                exact=True, inverse=double)  # fmt: skip
    derived = llama(CONFIG).with_(before=[norm])
    stored = dict(BASE)
    for number in range(2):
        array = stored.pop(f"layers.{number}.input_layernorm.weight")
        stored[f"layers.{number}.norm_of_attention"] = array * np.float32(2)
    plan, arrays = planned(derived, stored)
    assert_same(arrays)
    assert_back(plan, arrays, stored)


def apart(qzs: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Many to many: the two matrices' rows take turns, and each row has a scale."""
    whole = qzs * scales[:, None]
    return np.ascontiguousarray(whole[0::2]), np.ascontiguousarray(whole[1::2])


def together(gate: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    whole = np.empty((16, 16), np.float32)
    whole[0::2], whole[1::2] = gate, up
    scales = np.exp2(np.arange(16) % 3).astype(np.float32)
    return whole / scales[:, None], scales


def test_several_tensors_make_several() -> None:
    gives = {f"layers.{{L}}.mlp.{x}_proj.weight": "f m" for x in ("gate", "up")}
    turns = hook(apart, inputs={"layers.{L}.mlp.rows": "r m", "layers.{L}.mlp.scales": "r"}, outputs=gives, r=16,
                 exact=True, inverse=together)  # fmt: skip
    derived = llama(CONFIG).with_(before=[turns])
    stored = dict(BASE)
    for number in range(2):
        gate, up = (stored.pop(f"layers.{number}.mlp.{x}_proj.weight") for x in ("gate", "up"))
        rows, scales = together(gate, up)
        stored |= {f"layers.{number}.mlp.rows": rows, f"layers.{number}.mlp.scales": scales}
    plan, arrays = planned(derived, stored)
    assert_same(arrays)
    assert_back(plan, arrays, stored)


def swap(k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return v + np.float32(1), k


def unswap(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return second, first - np.float32(1)


def test_a_function_after_the_rules() -> None:
    """From parameters as the base has them to parameters, several at once; below another difference as well."""
    names = [f"model.layers.{{L}}.self_attn.{x}_proj.weight" for x in "kv"]
    axes = {name: "out:(g d) in:m" for name in names}
    post = hook(swap, inputs=axes, outputs=axes, g=2, d=4, m=16)
    derived = llama(CONFIG).with_(after=[post]).with_(names={"self_attn": "attention"})
    stored = {name.replace("self_attn", "attention"): array for name, array in BASE.items()}
    arrays = planned(derived, stored)[1]
    for number in range(2):
        k, v = (name.replace("{L}", str(number)) for name in names)
        assert np.array_equal(arrays[k], WANTED[v] + 1)
        assert np.array_equal(arrays[v], WANTED[k])


def test_a_function_before_a_stack_of_experts() -> None:
    """The number of an expert is a variable of the names that the function takes."""
    base = Adapter("experts")
    from bringup.adapters import stack

    base["experts"] = stack(S("experts.{E}.w", "f m"), over="E", n=3)
    derived = base.with_(before=[hook(halve, inputs={"parts.{E}": "f m"}, outputs={"experts.{E}.w": "f m"})])
    from bringup.graphs.core.axes import sized
    from bringup.graphs.core.signature import Declared

    signature = Signature({"experts": Declared("experts", sized("e f m", {"e": 3, "f": 2, "m": 4}), "float32")})
    random = np.random.default_rng(0)
    stored = {f"parts.{number}": random.random((2, 4), np.float32) for number in range(3)}
    arrays = planned(derived, stored, signature)[1]
    assert np.array_equal(arrays["experts"], np.stack([stored[f"parts.{number}"] / 2 for number in range(3)]))
    assert published(signature, derived).keys() == stored.keys()


class Renamed(Linear):
    """A layer whose checkpoints call the matrix by another name."""

    checkpoint_names: ClassVar[Mapping[str, Any]] = {"weight": "matrix", "o_proj": "out"}


def test_words_of_a_layer_s_class_come_first() -> None:
    graph = Llama(CONFIG)
    for layer in graph.layers:
        attention: Any = layer
        attention.self_attn.o_proj.__class__ = Renamed  # as a graph of such layers would have it
    signature = graph.signature()
    derived = llama(CONFIG).with_(names={"self_attn": "attention", "o_proj": "other", "weight": "w"})
    stored = {name.replace("self_attn", "attention").replace("weight", "w"): array for name, array in BASE.items()}
    for number in range(2):
        stored[f"layers.{number}.attention.out.matrix"] = stored.pop(f"layers.{number}.attention.o_proj.w")
    assert_same(planned(derived, stored, signature)[1])
    assert published(signature, derived).keys() == stored.keys()


def test_a_tie_is_translated() -> None:
    config = LlamaConfig.from_hf(RAW | {"tie_word_embeddings": True})
    derived = llama(config).with_(names={"embed_tokens": "wte"}, rules={"model.norm.weight": S("ln_f")})
    signature = Llama(config).signature()
    stored = tensors(derived, signature)
    assert "wte.weight" in stored
    arrays = planned(derived, stored, signature)[1]
    assert np.array_equal(arrays["lm_head.weight"], stored["wte.weight"])
    again = derived.with_(rules={"lm_head.weight": tied(S("head"), S("wte.weight", "vocab m"), when=True)})
    assert_same(planned(again, stored, signature)[1], arrays)


def test_drops_are_translated_and_added() -> None:
    derived = llama(CONFIG).with_(names={"self_attn": "attention"}, drops={"vision.{x:**}": "it sees images"})
    stored = {name.replace("self_attn", "attention"): array for name, array in BASE.items()}
    stored |= {"vision.a.b": np.zeros(2, np.float32), "layers.0.attention.rotary_emb.inv_freq": np.zeros(2, np.float32)}
    assert len(planned(derived, stored)[0].dropped) == 2


def quarters(array: np.ndarray) -> tuple[np.ndarray, ...]:
    return array[:4], array[4:]


def test_a_function_that_gives_something_else_is_an_error() -> None:
    gives = {f"layers.{{L}}.mlp.{x}_proj.weight": "f m" for x in ("gate", "up")}
    wrong = hook(quarters, inputs={"layers.{L}.mlp.both": "r m"}, outputs=gives, r=16)
    stored = dict(BASE)
    for number in range(2):
        parts = [stored.pop(f"layers.{number}.mlp.{x}_proj.weight") for x in ("gate", "up")]
        stored[f"layers.{number}.mlp.both"] = np.concatenate(parts)
    with pytest.raises(BringupError, match=r"BU116.*its rule declares"):
        planned(llama(CONFIG).with_(before=[wrong]), stored)


@pytest.mark.parametrize("words", [{"inputs": {}}, {"outputs": {}}, {"dtype": {"x": "float32"}}])
def test_a_hook_says_what_it_takes_and_gives(words: dict[str, Any]) -> None:
    given: Any = {"inputs": {"a": "m"}, "outputs": {"b": "m"}} | words
    with pytest.raises(ValueError, match="a hook needs input tensors"):
        hook(halve, **given)


def test_a_hook_takes_a_parameter_that_there_is_a_rule_for() -> None:
    post = hook(halve, inputs={"model.nrm.weight": "m"}, outputs={"model.norm.weight": "m"})
    plan = make_plan(SIGNATURE, llama(CONFIG).with_(after=[post]), dict_checkpoint(BASE, RAW).headers)
    assert any("0 rules of the base claim `model.nrm.weight`" in problem.message for problem in plan.problems)


def test_rules_in_place_of_the_name_are_an_error() -> None:
    rules: Any = {"model.norm.weight": S("model.nrm.weight")}
    with pytest.raises(TypeError, match="the first argument of `with_` is the adapter's name"):
        llama(CONFIG).with_(rules)
