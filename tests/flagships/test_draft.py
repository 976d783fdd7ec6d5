"""The drafts of the full-size DeepSeek checkpoints, by name: each tensor is the model's or its draft's."""

from __future__ import annotations

import pytest

from tests.flagships.measured import check


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2"])
def test_what_the_draft_reads_is_what_the_model_drops(written, name):
    folder, tensors = written(name)
    of_draft = [tensor for tensor in tensors if tensor.startswith("model.layers.61.")]
    for model, consumed in (((), len(tensors) - len(of_draft)), (("deepseek_mtp",), len(of_draft))):
        found = check(folder, *model)
        assert (found.code, found.report["findings"]) == (0, [])
        counts = found.report["counts"]
        assert (counts["consumed"], counts["dropped"]) == (consumed, len(tensors) - consumed)
        assert not found.modules & {"torch", "numpy", "transformers", "iree"}
