"""Drafts of Qwen3-Next and Qwen3.5: parity with transformers' decoder layer, between the parts that a draft adds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.qwen3_5_moe import Qwen3_5MoeConfig as MainConfig
from bringup.graphs.qwen3_mtp import Qwen3MtpConfig as OurConfig
from tests.graphs.published import PUBLISHED
from tests.models import drafts, family, parity, test_qwen3_5, test_qwen3_5_moe, test_qwen3_next
from tests.models.family import PROMPT, STEPS

CASES: dict[str, PreTrainedConfig] = {
    "next": test_qwen3_next.CASES["more-experts-than-tokens"],
    "next-dense-biases-tied": test_qwen3_next.CASES["dense-layers-biases-tied"],
    "dense-sections-of-rope": test_qwen3_5.CASES["sections-of-rope"],
    "moe-linear-rope": test_qwen3_5_moe.CASES["every-expert-linear-rope"],
}
TOKENS = parity.random_tokens(PROMPT + STEPS, 131)


def write(name: str, folder: Path, dtype: str = "float32") -> drafts.Draft:
    """The draft of one of CASES, in the checkpoint of its model."""
    folder.mkdir(exist_ok=True)
    return drafts.Draft(drafts.save(CASES[name], folder, dtype), folder / "whole", "qwen3_mtp")


def opened(checkpoint: Any, config: dict[str, Any] | None = None) -> Job:
    return open_job("qwen3_mtp", checkpoint, config=config)


def arrays(job: Job) -> dict[str, np.ndarray]:
    """Every parameter, of a checkpoint that fits."""
    assert check(job).findings == []
    return materialise(job.plan, job.checkpoint)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("dense-sections-of-rope", tmp_path_factory.mktemp("draft")).checkpoint


def test_each_drops_what_is_the_others(checkpoint: Path) -> None:
    main, draft = open_job(checkpoint=str(checkpoint)).plan, opened(str(checkpoint)).plan
    of_draft = {name for name in main.headers if name.startswith("mtp.")}
    assert len(of_draft) == 15
    assert main.dropped.keys() == of_draft
    both = {"model.embed_tokens.weight", "lm_head.weight"}
    assert draft.dropped.keys() == main.headers.keys() - of_draft - both
    assert {drop.why for drop in draft.dropped.values()} == {"of the model that is drafted for: `qwen3_5`"}
    assert all("`qwen3_mtp`" in drop.why for drop in main.dropped.values())


def test_every_tensor_of_the_draft_matters(checkpoint: Path, tmp_path: Path) -> None:
    """Each part that a draft adds, and the order of the two inputs, changes the reference by ten tolerances or more."""
    (tensors, config), hidden = drafts.read(checkpoint), drafts.random_hidden(len(TOKENS), 30)
    before = drafts.logits(checkpoint, TOKENS, hidden)
    (tmp_path / "whole").symlink_to(checkpoint.parent / "whole")
    names = {name: f"mtp.{name}.weight" for name in drafts.QWEN.values()}
    changed = {name: parity._overlooked(tensors[full], full) for name, full in names.items()}
    changed["order"] = torch.cat(tensors[names["fc"]].chunk(2, 1)[::-1], 1)
    for name, values in changed.items():
        other = tensors | {names.get(name, names["fc"]): values.contiguous()}
        folder = drafts.write(tmp_path / name, other, config)
        moved = parity.distance(drafts.logits(folder, TOKENS, hidden), before).worst
        assert moved > 10 * family.WORST["torch"], f"{name} moves the logits by {moved:.1e} only"


def test_a_published_file_with_a_vision_model(checkpoint: Path) -> None:
    """The text model has a longer prefix, and the draft none; the keys of its config are under `text_config`."""
    tensors, config = drafts.read(checkpoint)
    stored = {
        name.replace("model.", "model.language_model.", 1): tensor.numpy() for name, tensor in tensors.items()
    } | {"model.visual.patch_embed.proj.weight": np.ones(4, np.float32)}
    outer = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": config}
    report = check(opened(dict_checkpoint(stored, outer)))
    assert report.findings == []
    assert report.counts["dropped"] == len(stored) - 17


def test_experts_in_one_tensor_are_those_in_many(tmp_path: Path) -> None:
    tensors, config = drafts.read(write("moe-linear-rope", tmp_path).checkpoint)
    each = {name: tensor.numpy() for name, tensor in tensors.items()}
    at = "mtp.layers.0.mlp.experts."
    gate, up, down = (
        np.stack([each.pop(f"{at}{number}.{x}_proj.weight") for number in range(config["num_experts"])])
        for x in ("gate", "up", "down")
    )
    fused = each | {f"{at}gate_up_proj": np.concatenate((gate, up), 1), f"{at}down_proj": down}
    stored = {name: tensor.numpy() for name, tensor in tensors.items()}
    one, many = (arrays(opened(dict_checkpoint(form, config))) for form in (fused, stored))
    assert one.keys() == many.keys()
    assert all((one[name] == many[name]).all() for name in one)


def test_the_published_config() -> None:
    raw = PUBLISHED["qwen3_5_moe"]["Qwen/Qwen3.6-35B-A3B"]
    main, config = MainConfig.from_hf(raw), OurConfig.from_hf(raw)
    assert config.block == replace(main, windows=(None,), recurrent=(False,), sparse=(True,))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mtp_num_hidden_layers": 0}, r"BU122.*`text_config.mtp_num_hidden_layers` = 0.*implements 1"),
        ({"mtp_num_hidden_layers": "x"}, r"BU121.*`text_config.mtp_num_hidden_layers`.*int"),
        ({"mtp_use_dedicated_embeddings": True}, r"BU122.*`text_config.mtp_use_dedicated_embeddings` = True"),
        ({"model_type": "qwen3_moe"}, r"BU125.*the draft of `qwen3_moe`.*`qwen3_next`"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], message: str) -> None:
    raw = json.loads(json.dumps(PUBLISHED["qwen3_5_moe"]["Qwen/Qwen3.6-35B-A3B"]))
    raw |= {key: keys[key] for key in keys.keys() & raw}
    raw["text_config"] |= {key: keys[key] for key in keys.keys() - {"model_type"}}
    with pytest.raises(BringupError, match=message) as caught:
        OurConfig.from_hf(raw)
    assert len(caught.value.findings) == 1
