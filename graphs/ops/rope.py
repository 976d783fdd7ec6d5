from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op

if TYPE_CHECKING:
    from torch import Tensor


@op("x_NHK[N H K] cos_NC[N C] sin_NC[N C] -> [N H K]")
def rope(x_NHK: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021), half layout: channel i turns with channel i + K/2; C = K/2.

    The rows of `cos` and `sin` are those of the tokens' positions. Computed in float32.
    """
    import torch

    first, second = x_NHK.float().chunk(2, dim=-1)
    cos, sin = cos_NC[:, None], sin_NC[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_NHK.dtype)
