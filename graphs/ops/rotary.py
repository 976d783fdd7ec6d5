from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("x_NHK[N H K] cos_NC[N C] sin_NC[N C] -> [N H K]")
def rope(x_NHK: Tensor, cos_NC: Tensor, sin_NC: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of the first 2C channels; the others are unchanged.

    Channel i rotates with channel i + C, or, `interleaved`, channel 2i with 2i + 1. The rows of `cos` and `sin` are
    those of the tokens' positions. Computed in float32.
    """
    import torch

    rotary = 2 * cos_NC.shape[1]
    wide, rest = x_NHK[..., :rotary].float(), x_NHK[..., rotary:]
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    cos, sin = cos_NC[:, None], sin_NC[:, None]
    parts = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return torch.cat((rotated.to(x_NHK.dtype), rest), dim=-1) if rest.shape[-1] else rotated.to(x_NHK.dtype)


def query_growth(positions_N: Tensor, factor: float, period: int) -> Tensor:
    """1 + factor · log(1 + ⌊position / period⌋), float32 [N, 1, 1]: what the queries of a token are multiplied by.

    Scores of long contexts then stay as far apart as those of short ones (Nakanishi 2025, arXiv 2501.19399).
    """
    periods_N = (positions_N - positions_N % period).float() / period  # exact, unlike the quotient of floats
    return (1 + factor * (1 + periods_N).log())[:, None, None]
