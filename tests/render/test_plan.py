"""Copies in words, for every layout that the adapters are tested with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bringup.adapters.planning.plan import make_plan
from bringup.compile.report.describe import copies, dtypes, how
from bringup.render.plan import plan_text
from tests.adapters.layouts import LAYOUTS, Case


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_entry_can_be_described(layout: Callable[..., Case]) -> None:
    case = layout(np.random.default_rng(0), h=4, d=8)
    plan = make_plan(case.signature, case.adapter, case.checkpoint.headers)
    assert plan.entries
    for entry in plan.entries.values():
        assert how(entry)
        assert len(list(copies(entry))) >= len(entry.stored().nests)
        assert list(dtypes(entry))
    assert plan_text(plan).count("<-") == len(plan.entries)
