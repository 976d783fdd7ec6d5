"""Parts of layers and their weights, against sums worked out by hand."""

from __future__ import annotations

from bringup.compile.job import Job, open_job
from bringup.compile.report.model_parts import PARTS, parts, places
from tests.report.conftest import SMALL


def test_gpt2_by_hand(small: Job):
    m, vocab, positions, layers = SMALL["hidden"], SMALL["vocab"], SMALL["positions"], SMALL["layers"]
    attention = m * 3 * m + 3 * m + m * m + m
    feed_forward = m * 4 * m + 4 * m + 4 * m * m + m
    layer = {"norm": 4 * 4 * m, "attention": 4 * attention, "feed-forward": 4 * feed_forward}
    found = places(small.graph, small.plan)
    assert [place.name for place in found] == ["before", *(f"transformer.h.{i}" for i in range(layers)), "after"]
    assert found[0].nbytes == {"embedding": 4 * (vocab + positions) * m}
    assert all(place.nbytes == layer for place in found[1:-1])
    assert found[-1].nbytes == {"norm": 4 * 2 * m}, "the head is tied: it weighs nothing a second time"


def test_llama_by_name():
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": False,
    }  # fmt: skip
    job = open_job("llama", "dummy", config=config)
    words = {"embed_tokens": "embedding", "lm_head": "embedding", "norm": "norm", "self_attn": "attention"}
    for name in job.plan.signature:
        wanted = next((part for word, part in words.items() if word in name), "feed-forward")
        assert parts(job.graph)[name] == wanted, name
    stored = sum(sum(place.nbytes.values()) for place in places(job.graph, job.plan))
    assert stored == sum(declared.nbytes for declared in job.plan.signature.values())


def test_every_module_and_parameter_has_a_part(small: Job):
    known = parts(small.graph)
    above = {name.rpartition(".")[0] for name in small.plan.signature}
    assert known.keys() >= {*small.plan.signature, *above}
    assert set(known.values()) <= set(PARTS)
    assert known["transformer.h.1.attn.cache"] == known["transformer.h.1.attn"] == "attention"
    assert known["transformer.h.1"] == "feed-forward"
