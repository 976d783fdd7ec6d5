"""Times and counts of a sequence."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Stats:
    """Counts and times of one sequence: its processed tokens, the seconds of their steps, and of loading."""

    load_seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(slots=True)
class DraftStats:
    """Counts of one sequence: `steps` of the main model after the prompt, tokens that the draft `proposed`, those that
    were `accepted`, and the new `tokens` of these steps, without those after an end of sequence."""

    steps: int = 0
    proposed: int = 0
    accepted: int = 0
    tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """The share of accepted tokens among the proposed ones; 0 without proposals."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_step(self) -> float:
        """The mean number of new tokens of a step of the main model; 0 without steps."""
        return self.tokens / self.steps if self.steps else 0.0

    def to_json(self) -> dict[str, float]:
        """Counts and rates by name."""
        rates = {"acceptance_rate": self.acceptance_rate, "tokens_per_step": self.tokens_per_step}
        return asdict(self) | rates
