"""An engine of `prefill.py`: `python prefill_engine.py max|vllm|bringup MODEL DTYPE LENGTH`.

Prints `prefill ready` once it is warm, then `prefill SECONDS` for each line of its input: the time from the tokens of a
prompt to the logits of its last token; for vLLM, to the first new token.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

WARM = 3  # prompts before the first that counts

Run = Callable[[list[int]], object]


def bringup(model: str, dtype: str, length: int) -> Run:
    from bringup import load

    session = load(model)

    def run(tokens: list[int]) -> object:
        session.reset()
        return session.prefill(tokens)

    return run


def vllm(model: str, dtype: str, length: int) -> Run:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model, dtype=dtype, skip_tokenizer_init=True, max_model_len=length + 1, max_num_batched_tokens=length + 1,
        enable_prefix_caching=False,
    )  # fmt: skip
    one = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    return lambda tokens: engine.generate({"prompt_token_ids": tokens}, one, use_tqdm=False)


def max(model: str, dtype: str, length: int) -> Run:
    sys.path.append(str(Path(__file__).parent))
    import numpy as np
    from faults_max import tensors
    from max.dtype import DType
    from max.experimental import functional as F
    from max.experimental.tensor import Tensor, TensorType, defaults

    if dtype != "float32":
        raise SystemExit("MAX runs in float32 here")
    folder = Path(model)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    graphs = runpy.run_path(str(Path(__file__).with_name("faults_max_graphs.py")))["GRAPHS"]

    class LastLogits(graphs[config["model_type"]]):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.hidden(tokens)[:, -1:])

    weights = {
        name.removeprefix(LastLogits.root): np.ascontiguousarray(array.T if name.endswith(LastLogits.conv1d) else array)
        for name, array in tensors(folder).items()
    }
    device = defaults()[1].devices[0]
    with F.lazy():
        graph = LastLogits(config)
    run = graph.compile(TensorType(DType.int64, [1, "t"], device=device), weights=weights)
    return lambda tokens: np.from_dlpack(run(Tensor(np.array([tokens]), dtype=DType.int64, device=device)).to_numpy())


def main() -> None:
    name, model, dtype, length = sys.argv[1:]
    run = globals()[name](model, dtype, int(length))
    tokens = [(7919 * n + 13) % 8000 for n in range(int(length))]
    for _ in range(WARM):
        run(tokens)
    print("prefill ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run(tokens)
        print(f"prefill {time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
