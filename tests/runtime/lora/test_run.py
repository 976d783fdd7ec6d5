"""`bringup compile --lora-dir`, and `bringup run` with LoRAs: for a prompt, and for each request of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bringup.cli.main import cli
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import open_job
from bringup.compile.lora.limits import with_slots
from bringup.compile.program.program import Interface
from bringup.diagnostics import BringupError
from tests.runtime.lora.bases import Base

NEW, PROMPT = 5, [5, 9, 60, 33]


def bringup(*words: object, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], input=stdin)


@pytest.fixture(scope="module")
def bundle(gpt2: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of GPT-2, for LoRAs like its two."""
    out = tmp_path_factory.mktemp("run") / "gpt2.bundle"
    done = bringup(
        "compile", "--checkpoint", gpt2.folder, "--target", "torch", "--max-seq-len", 32, "--max-batch-size", 2,
        "--lora-dir", gpt2.loras["plain"], "--lora-dir", gpt2.loras["all"], "-o", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return out


def test_a_bundle_has_slots_for_loras_like_the_given_ones(bundle):
    manifest = read_manifest(bundle)
    assert manifest["graph_options"] == {
        "max_lora_rank": 8, "max_loras": 2, "lora_target_modules": ["c_attn", "c_fc", "c_proj"],
    }  # fmt: skip
    states = Interface.from_json(manifest["interface"]).states
    slots = {spec.name: spec.shape for spec in states if spec.kind == "lora"}
    assert slots["transformer.h.1.attn.c_attn.weight_lora.a"] == (2, 8, 24)
    assert slots["transformer.h.1.attn.c_attn.weight_lora.b"] == (2, 8, 72)
    assert len(slots) == 2 * 4 * 2


def test_a_prompt_has_the_lora_that_is_named(gpt2, bundle):
    tokens = ",".join(map(str, PROMPT))
    for words, lora in (((), None), (("--lora", f"x={gpt2.loras['all']}"), "all")):
        done = bringup("run", bundle, "--tokens", tokens, "--max-new-tokens", NEW, "--json", *words)
        assert json.loads(done.stdout)["tokens"] == gpt2.continued(lora, PROMPT, NEW)
    several = [word for name, folder in gpt2.loras.items() for word in ("--lora", f"{name}={folder}")]
    done = bringup(
        "run", bundle, "--tokens", tokens, "--max-new-tokens", NEW, "--json", *several, "--lora-name", "plain"
    )
    assert json.loads(done.stdout)["tokens"] == gpt2.continued("plain", PROMPT, NEW)


def test_each_request_of_a_file_has_its_own(gpt2, bundle):
    loras = ["all", None, "plain", "all", -1]
    lines = "".join(json.dumps({"tokens": PROMPT, "lora": lora}) + "\n" for lora in loras)
    several = [word for name, folder in gpt2.loras.items() for word in ("--lora", f"{name}={folder}")]
    done = bringup("run", bundle, "--batch", "-", "--max-new-tokens", NEW, *several, stdin=lines)
    answers = [json.loads(line)["tokens"] for line in done.stdout.splitlines()]
    assert answers == [gpt2.continued(lora if lora in gpt2.loras else None, PROMPT, NEW) for lora in loras]
    assert len({tuple(answer) for answer in answers}) == 3


def test_wrong_words_are_named(gpt2, llama, bundle):
    tokens = ("--tokens", "1,2")
    one, two = (f"{name}={gpt2.loras['all']}" for name in ("one", "two"))
    cases = {
        ("--lora", "one"): "`one` is not NAME=PATH",
        ("--lora", one, "--lora", one): "two LoRAs have the name `one`",
        ("--lora", one, "--lora", two): "several LoRAs are loaded = help: select one with --lora-name NAME",
        ("--lora", one, "--lora-name", "three"): "unknown LoRA `three`",
        ("--batch", "-", "--lora-name", "one"): "--lora-name is for one prompt = help: in the file of --batch write",
        ("--lora", f"one={llama.loras['plain']}"): "error[BU16",  # of another base: as `lora check` has it
    }
    for words, message in cases.items():
        done = bringup("run", bundle, *(() if "--batch" in words else tokens), *words)
        assert done.exit_code != 0
        assert message in " ".join(done.output.split()), (words, done.output)
    lines = "".join(f'{{"tokens": [1], "lora": {lora}}}\n' for lora in ('"one"', 1.5, 7))
    done = bringup("run", bundle, "--batch", "-", "--lora", f"7={gpt2.loras['all']}", stdin=lines)
    assert "line 1: the LoRA `one` is not in the cache" in " ".join(done.output.split())
    assert "= help: name its files: --lora one=PATH" in done.output
    assert "line 2: `lora` is 1.5, not the name of a LoRA, or null" in " ".join(done.output.split())
    assert 'line 3: `lora` is 7, and names of LoRAs are texts: write "7"' in " ".join(done.output.split())


def test_limits_that_say_nothing_are_refused(gpt2):
    words = ("compile", "--checkpoint", gpt2.folder, "--target", "torch")
    done = bringup(*words, "--max-loras", 2)
    assert "go with --max-lora-rank R or --lora-dir DIR" in " ".join(done.output.split())
    done = bringup(*words, "--max-lora-rank", 2, "--lora-target-modules", "c_atn")
    assert "no module of the graph is called `c_atn`" in done.output
    assert "did you mean `c_attn`?" in done.output


@pytest.mark.parametrize(
    ("base", "given", "wanted"),
    [
        ("llama", ["attn_q", "attn_v"], ["self_attn.q_proj", "self_attn.v_proj"]),
        ("llama", ["attn_qkv"], ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("llama", ["attn_dense", "mlp_gate", "o_proj"], ["self_attn.o_proj", "mlp.up_proj", "o_proj"]),
        ("gpt2", ["attn_qkv", "mlp_h_to_4h"], ["attn.c_attn", "mlp.c_fc"]),
    ],
)
def test_modules_by_the_names_of_tensorrt_llm(base, given, wanted, request):
    """docs/source/advanced/lora.md of NVIDIA/TensorRT-LLM; `mlp_gate` is up, as in its checkpoints."""
    folder = request.getfixturevalue(base).folder
    job = with_slots(open_job(None, folder), rank=2, modules=given)
    assert list(job.graph.options.lora_target_modules) == wanted
    with pytest.raises(BringupError, match="no module of the graph is called `attn_k_norm`"):
        with_slots(job, rank=2, modules=["attn_k_norm"])
