# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A cache of transformers whose contents have another dtype than the model."""

from __future__ import annotations

from typing import Any


def rounding_cache(config: Any, dtype: str) -> Any:
    """An empty transformers cache, for a model of this config, that rounds its contents to a dtype.

    Values beyond the range of the dtype saturate, as in `ops.kv_cache.write_cache`.
    """
    import torch
    import transformers

    stored = getattr(torch, dtype)
    largest = torch.finfo(stored).max

    def rounded(states: torch.Tensor) -> torch.Tensor:
        return states.clamp(-largest, largest).to(stored).to(states.dtype)

    class Rounding(transformers.DynamicCache):
        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> Any:
            return super().update(rounded(key_states), rounded(value_states), layer_idx, *args, **kwargs)

        def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
            return super().update_indexer(rounded(indexer_key_states), layer_idx)

    return Rounding(config=config)
