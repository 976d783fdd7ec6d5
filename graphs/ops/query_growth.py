from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def query_growth(positions_N: Tensor, factor: float, period: int) -> Tensor:
    """1 + factor · log(1 + ⌊position / period⌋), float32 [N, 1, 1]: what the queries of a token are multiplied by.

    Scores of long contexts then stay as far apart as those of short ones (Nakanishi 2025, arXiv 2501.19399).
    """
    periods_N = (positions_N - positions_N % period).float() / period  # exact, unlike the quotient of floats
    return (1 + factor * (1 + periods_N).log())[:, None, None]
