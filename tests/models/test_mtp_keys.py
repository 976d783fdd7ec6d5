"""Every key of a config.json, changed: what moves the logits of transformers' layer moves the draft's likewise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from tests.models import drafts, family, test_deepseek_mtp, test_qwen3_mtp

OF_MODEL = {"num_hidden_layers", "num_nextn_predict_layers"}  # which layer is the draft's: tested by name
OF_LAYERS = {"mlp_layer_types", "layer_types", "indexer_types", "mlp_only_layers"}  # longer by the draft's layer
MODULES = (test_deepseek_mtp, test_qwen3_mtp)


def changed(case: drafts.Draft, words: dict[str, object], out: Path) -> Path:
    """The checkpoint with other words in its config.json, and transformers' beside it likewise."""
    shutil.copytree(case.reference, out / "whole")
    shutil.copytree(case.checkpoint, out / "published")
    (out / "published/config.json").write_text(json.dumps(words), "utf-8")
    whole = json.loads((out / "whole/config.json").read_text("utf-8"))
    words = {key: value for key, value in words.items() if key not in OF_MODEL | OF_LAYERS}
    (out / "whole/config.json").write_text(json.dumps(whole | words), "utf-8")
    return out / "published"


def theirs(folder: Path, tokens: list[int], hidden: np.ndarray) -> np.ndarray | None:
    """None where transformers does not take the config, or not with these weights."""
    try:
        logits = drafts.logits(folder, tokens, hidden)
    except Exception:  # whatever it meets, it has no logits to compare with
        return None
    return logits if np.isfinite(logits).all() else None


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(module, name) for module in MODULES for name in module.CASES])
def test_keys_walk(module: ModuleType, name: str, tmp_path: Path) -> None:
    case = module.write(name, tmp_path / "base")
    _, raw = drafts.read(case.checkpoint)
    tokens, before = case.theirs()
    hidden = case.inputs["hidden"]
    departing: dict[str, str] = {}
    for number, (key, words) in enumerate(family._walk(raw, {})):
        if key in OF_MODEL:
            continue
        folder = changed(case, words, tmp_path / str(number))
        wanted = theirs(folder, tokens, hidden)
        if wanted is None:
            departing.setdefault(key, "transformers refuses")
            continue
        try:
            job = open_job(case.model, str(folder))
            check(job).raise_if_errors()
            ours = family.eager_logits(job, tokens, family.PROMPT, hidden=hidden)
        except BringupError as refusal:
            departing[key] = refusal.findings[0].code
            continue
        far = family._far(ours, wanted)
        assert far <= family.WORST["torch"], f"`{key}`: ours {far:.1e} away from theirs"
        departing[key] = (
            "same change" if family._far(wanted, before) > family.MOVED else departing.get(key, "no change")
        )
    assert "same change" in departing.values()
    print(departing)
