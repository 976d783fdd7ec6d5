"""What is wrong with the config does not hide what is wrong with the weights."""

from __future__ import annotations

import json

from bringup.adapters.planning.expected_headers import published
from bringup.adapters.sources.dummy import dummy_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.graphs.gpt2 import GPT2, SIZES, GPT2Config
from bringup.graphs.registry import by_name


def test_config_and_weight_findings_come_in_one_report(tmp_path):
    raw = SIZES["gpt2"]
    config = GPT2Config.from_hf(raw)
    headers = published(GPT2(config).signature(), by_name("gpt2")[0].load("adapter")(config))
    del headers["ln_f.bias"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw | {"activation_function": "swoosh", "attn_soft_cap": 30.0}))
    report = check(open_job("gpt2", dummy_checkpoint(headers, raw), config=str(path)))
    assert sorted((f.code, f.parameter) for f in report.errors) == [
        ("BU101", "transformer.ln_f.bias"),
        ("BU120", "attn_soft_cap"),
        ("BU122", "activation_function"),
    ]
