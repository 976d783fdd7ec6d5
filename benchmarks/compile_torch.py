"""`python -m benchmarks.compile_torch CHECKPOINT [edited]`: GPT-2 with torch.compile, until both graphs have run."""

from __future__ import annotations

import sys

from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from benchmarks.workers import TorchCompile


def main() -> None:
    if sys.argv[2:] == ["edited"]:
        published = GPT2MLP.forward

        def forward(self: GPT2MLP, hidden: object) -> object:
            return 1.5 * published(self, hidden)

        GPT2MLP.forward = forward
    model = TorchCompile("float32", sys.argv[1], 32)
    model.prefill()
    model.decode(2)


if __name__ == "__main__":
    main()
