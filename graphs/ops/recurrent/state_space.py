"""The state space of Mamba 2: linear attention whose state, one matrix for each head of each sequence, decays.

N tokens of the step · B sequences · G key heads · R value heads of each · H = G · R · K channels of a query and a key ·
V of a value · C tokens of a chunk
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.ops.op import op
from bringup.graphs.ops.recurrent.chunks import attend, decays, each_sequence

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


@op("q_NGK[N G K] k_NGK[N G K] v_NGRV[N G R V] decay_NH[N H] state_SHKV[S H K V]! -> [N H V]")
def state_space(
    q_NGK: Tensor, k_NGK: Tensor, v_NGRV: Tensor, decay_NH: Tensor, state_SHKV: Tensor, step: Step
) -> Tensor:
    """Adds k ⊗ v of each token to the state of its sequence, and multiplies the state by the query.

    A token does, in float32 (Dao and Gu 2024, "Transformers are SSMs", equation 8, where q is C, k is B, and v is the
    input)::

        S = exp(decay) · S + k ⊗ v
        result = q · S

    `decay` is a logarithm, at most 0. The state is in the row of the sequence (`step.rows`), zeros before its first
    token. Results for padding are finite and undefined.

    Here in chunks of C tokens, as matrix products (section 6 of that paper).
    """
    repeats = v_NGRV.shape[2]
    q_HNK, k_HNK = (x.float().repeat_interleave(repeats, 1).transpose(0, 1) for x in (q_NGK, k_NGK))
    v_HNV, decay_HN = v_NGRV.float().flatten(1, 2).transpose(0, 1), decay_NH.float().t()
    if step.decode:
        decayed = decay_NH.float().exp()[..., None, None] * step.previous(state_SHKV).float()
        state_BHKV = decayed + (k_HNK[..., None] * v_HNV[:, :, None]).transpose(0, 1)
        state_SHKV.index_copy_(0, step.rows, state_BHKV.to(state_SHKV.dtype))
        out_NHV = (q_HNK.transpose(0, 1)[..., None] * state_BHKV).sum(2)
    else:
        out_NHV = each_sequence((q_HNK, k_HNK), (v_HNV, decay_HN), state_SHKV, step, _chunk)
    return out_NHV.to(v_NGRV.dtype)


def _chunk(q_HCK: Tensor, k_HCK: Tensor, v_HCV: Tensor, decay_HC: Tensor, state_HKV: Tensor) -> tuple[Tensor, Tensor]:
    return attend(q_HCK, k_HCK, v_HCV, *decays(decay_HC), state_HKV)
