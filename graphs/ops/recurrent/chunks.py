"""Linear attention of the sequences of a step: the state of each is a matrix for each head, which decays.

N tokens of the step · B sequences · H heads · K channels of a query and a key · V of a value · C tokens of a chunk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bringup.graphs.ops.attention import of_own_sequence

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

CHUNK = 64  # tokens whose updates of the state are computed together


def each_sequence(
    tokens: tuple[Tensor, ...],
    gates: tuple[Tensor, ...],
    state_SHKV: Tensor,
    step: Step,
    chunk: Callable[..., tuple[Tensor, Tensor]],
) -> Tensor:
    """Results [N, H, V]; updates the states of all sequences by chunks of their tokens.

    `chunk` is called with parts of `tokens` [H C …], of `gates` [H C …], and a state [H K V]; it returns results
    [H C V] and the new state. Gates are 0 at tokens of other sequences, at which it must not change the state; for the
    state that is stored, at proposals too.
    """
    import torch

    before_BHKV, sequence_N = step.previous(state_SHKV).float(), step.sequences()
    of_each: list[Tensor] = []
    after: list[Tensor] = []
    at_N, ends_B = torch.arange(sequence_N.shape[0]), step.starts[:-1] + step.num_certain()

    def after_tokens(of_state_N: Tensor, state_HKV: Tensor) -> tuple[Tensor, Tensor]:
        """Results [N H V], and the state after the tokens that change it."""
        results: list[Tensor] = []
        own = [gate.masked_fill(~of_state_N.view(1, -1, *[1] * (gate.dim() - 2)), 0.0) for gate in gates]
        for start in range(0, sequence_N.shape[0], CHUNK):
            parts = [each[:, start : start + CHUNK] for each in (*tokens, *own)]
            result_HCV, state_HKV = chunk(*parts, state_HKV)
            results.append(result_HCV)
        return torch.cat(results, 1).transpose(0, 1), state_HKV

    for b in range(step.num_sequences):
        result_NHV, state_HKV = after_tokens(sequence_N == b, before_BHKV[b])
        if step.proposals:
            state_HKV = after_tokens((sequence_N == b) & (at_N < ends_B[b]), before_BHKV[b])[1]
        of_each.append(result_NHV)
        after.append(state_HKV)
    state_SHKV.index_copy_(0, step.rows, torch.stack(after).to(state_SHKV.dtype))
    return of_own_sequence(of_each, step)


def decays(decay_HC: Tensor) -> tuple[Tensor, Tensor]:
    """exp of the decays since the state before the chunk [H C 1], and between a token and an earlier one [H C C].

    The latter are sums of their own: a difference of two large sums would have lost its last digits.
    """
    import torch

    size = decay_HC.shape[1]
    row, column = torch.arange(size)[:, None], torch.arange(size)[None]
    between_HCC = decay_HC[:, :, None].masked_fill(row <= column, 0.0)
    apart_HCC = between_HCC.cumsum(1).exp().masked_fill(row < column, 0.0)
    return decay_HC.cumsum(1).exp()[..., None], apart_HCC


def attend(
    q_HCK: Tensor, k_HCK: Tensor, updates_HCV: Tensor, since_HC1: Tensor, apart_HCC: Tensor, state_HKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Results [H C V] and the state after the chunk [H K V], for S_i = Σ_j≤i apart_ij · k_j ⊗ u_j + since_i · S."""
    result_HCV = since_HC1 * (q_HCK @ state_HKV) + (apart_HCC * (q_HCK @ k_HCK.transpose(1, 2))) @ updates_HCV
    until_HC1 = apart_HCC[:, -1, :, None]
    return result_HCV, since_HC1[:, -1:] * state_HKV + (until_HC1 * k_HCK).transpose(1, 2) @ updates_HCV
