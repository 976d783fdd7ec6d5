"""The bounds of Mamba 2's time steps in transformers' Nemotron-H.

Up to 5.24 its code raises those of a prompt to `time_step_min`, but not those of single tokens. The published code and
other programs do neither (transformers' pull request 48989 and mlx-lm's 1026 measure the difference).
"""

from __future__ import annotations

from math import inf
from typing import Any


def remove_time_step_bounds(model: Any) -> bool:
    """Removes the lower bound from the mixers of a Nemotron-H; returns whether there was one."""
    mixers = [part for part in model.modules() if type(part).__name__ == "NemotronHMamba2Mixer"]
    bounded = [mixer for mixer in mixers if mixer.time_step_limit[0] > 0]
    for mixer in bounded:
        mixer.time_step_limit = (0.0, inf)
    return bool(bounded)
