"""One sequence of a bundle: prompts in, tokens out."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from os import PathLike
from typing import TYPE_CHECKING, Self, SupportsIndex

import numpy as np

from bringup.arguments import integer, integer_list
from bringup.compile.program.program import Executor
from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.lora.loras import Loras
from bringup.compile.runtime.lora.weights import LoraWeights, TaskId
from bringup.compile.runtime.opening import Opened, open_bundle
from bringup.compile.runtime.parts import Cached, Part, Results
from bringup.compile.runtime.request import task_id
from bringup.compile.runtime.sampling import check_drawn, check_sampling, draw_of, next_token
from bringup.compile.runtime.stats import Stats
from bringup.compile.runtime.token_ids import check_context, check_input, check_inputs, check_vocabulary, integers
from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer


class Session:
    """One sequence at a time on one executor. If a step fails, the session is reset."""

    lora: TaskId | None = None  # that of the sequence, see `use_lora`

    def __init__(self, opened: Opened) -> None:
        self.manifest, self.interface, self.folder = opened.manifest, opened.interface, opened.folder
        self.device = opened.device
        self.stats = Stats(opened.seconds)
        self.max_seq_len: int = opened.manifest["max_seq_len"]
        self.hidden: dict[str, np.ndarray] = {}  # of the last processed tokens, [N, m] each: `hidden.3`, …
        self._opened = opened
        self._engine = Engine(opened.manifest, opened.executor, opened.interface, share_blocks=False)
        self.loras = Loras(opened.interface, opened.executor)
        self._slot = -1
        self._cached = self._begin()
        self.turn = 0  # incremented by every call of a user: a running `generate` notices other calls

    @property
    def tokens(self) -> Sequence[int]:
        """The processed tokens of the sequence."""
        return self._cached.tokens

    @property
    def executor(self) -> Executor:
        """The object that runs the steps. It can be replaced."""
        return self._engine.executor

    @executor.setter
    def executor(self, executor: Executor) -> None:
        self._engine.executor = executor

    def close(self) -> None:
        """Releases the device resources of the executor, such as memory. Steps raise BU617 from then on.

        Leaving a `with` block also closes it, and so does the end of the last reference to the executor.
        """
        self._engine.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises BU014 if it has none, BU608 if it is not the one it was compiled with."""
        return self._opened.tokenizer()

    def reset(self) -> None:
        """Removes the sequence."""
        self.turn += 1
        self._engine.reset()
        self._cached = self._begin()

    def _begin(self) -> Cached:
        cached = self._engine.open()
        assert cached, "a session has one sequence"
        cached.slot = self._slot
        return cached

    def read_lora(self, path: str | PathLike[str]) -> LoraWeights:
        """As `Batch.read_lora`."""
        from bringup.compile.runtime.lora.reading import read_lora

        return read_lora(self.manifest, path, self._opened.weights)

    def use_lora(self, task: TaskId | None, weights: LoraWeights | None = None) -> None:
        """Applies this LoRA, or none, from now on, and resets the sequence.

        The first use of a task passes its weights. Raises BU620 without them, BU621 if there is no memory for them,
        BU622 if the bundle does not support them; the previous LoRA is then unchanged.
        """
        task, before = task_id(task), self.lora
        self.loras.hold(task, weights)
        self.loras.leave(before)
        self._slot, self.lora = self.loras.place(task), task
        self.loras.release(before)
        self.reset()

    def rewind(self, count: int) -> bool:
        """Keeps the first `count` tokens of the sequence.

        Returns False, and changes nothing, if the states cannot be rewound that far from the longest length of the
        sequence, or depend on that length. Raises BU024 for a negative count.
        """
        self.turn, count = self.turn + 1, integer("count", count, minimum=0)
        most, longest = self.interface.rewindable, self._cached.longest
        if self._engine.varies(longest) or (most is not None and longest - count > most):
            return False
        self._engine.rewind(self._cached, count)
        return True

    def resume(self, tokens: Sequence[int]) -> None:
        """Keeps the common prefix of the sequence and `tokens`, except the last of `tokens`, whose logits are needed.

        Nothing is kept if the states cannot be rewound (see `rewind`), or depend on the length of `tokens`: the result
        is that of a new sequence.
        """
        pairs = zip(self._cached.tokens, tokens[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if self._engine.varies(len(tokens)) or not self.rewind(common):
            self.reset()

    def uniform(self, total: int) -> int:
        """The number of tokens after the first `total` that one step can process with the results of a step for each.

        It is limited by the context, and by the lengths at which the model's rope changes; below 0 if `total` exceeds
        the context.
        """
        return self._engine.uniform(total)

    def begin(self, tokens: Sequence[int], *, resume: bool = False) -> np.ndarray:
        """Starts a sequence with these tokens: the logits of the last one, float32 [V].

        `resume` reuses the common prefix with the previous sequence. Raises as `prefill` does.
        """
        if resume:
            self.resume(tokens)
        else:
            self.reset()
        rest = self._checked(tokens[len(self._cached.tokens) :], {})
        start = time.perf_counter()
        logits = self._process(rest, {}, last=True)[-1]
        self.stats = Stats(self.stats.load_seconds, len(rest), time.perf_counter() - start)
        return logits

    def prefill(self, tokens: Iterable[SupportsIndex], **inputs: np.ndarray) -> np.ndarray:
        """Appends tokens to the sequence. Logits of the last one, or of every one: float32 [R, V].

        `inputs` are the model's further inputs, a row for each token; they are cast to its dtype. Raises BU015 for an
        invalid token, BU016 if the tokens exceed the context, BU029 for other inputs.
        """
        self.turn += 1
        return self._process(self._checked(tokens, inputs), inputs)

    def check(self, tokens: Sequence[int], proposals: Sequence[int]) -> np.ndarray:
        """As `prefill`, in one step, and with proposals of a draft, which `rewind` can then remove."""
        self.turn += 1
        return self._process(self._checked([*tokens, *proposals], {}), {}, certain=len(tokens))

    def decode(self, token: SupportsIndex, **inputs: np.ndarray) -> np.ndarray:
        """One more token: its logits, float32 [V]. Raises as `prefill` does."""
        self.turn += 1
        return self._process(self._checked([token], inputs), inputs, decode=True)[0]

    def _process(
        self, tokens: list[int], inputs: Mapping[str, np.ndarray], *,
        decode: bool = False, last: bool = False, certain: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """The logits that the program returns, [R, V]; with `last`, only those of the last token."""
        held = self._cached.tokens
        total = len(held) + len(tokens)
        outgrown = self._engine.outgrown(total)
        if held and outgrown != self._cached.outgrown:
            return self._recompute(tokens, inputs, last=last, certain=certain)
        self._cached.outgrown = outgrown
        results: list[Results] = []
        with self._reserved(Part(self._cached, [], total)):
            self._engine.catch_up(self._cached, len(tokens))
        at, first = 0, len(tokens) if certain is None else max(certain - 1, 0)  # the others are one step
        while at < len(tokens):
            left = first - at
            end = at + (1 if decode else min(left, self._engine.prefill_size(left))) if left else len(tokens)
            rows = {name: array[at:end] for name, array in inputs.items()}
            of_step = None if left or certain is None else certain - at
            with self._reserved(Part(self._cached, tokens[at:end], total, rows, of_step)) as part:
                (found,) = (self._engine.decode if decode else self._engine.prefill)([part])
            results.append(found._replace(logits=found.logits[-1:].copy()) if last else found)
            at = end
        self.hidden = {name: np.concatenate([each.hidden[name] for each in results]) for name in results[0].hidden}
        every = self.interface.all_logits and not last
        return np.concatenate([each.logits for each in results]) if every else results[-1].logits

    def _recompute(
        self, tokens: list[int], inputs: Mapping[str, np.ndarray], *, last: bool, certain: int | None
    ) -> np.ndarray:
        """Recomputes the states of all tokens; returns the results of the last ones, `tokens`."""
        earlier = self._cached.tokens
        if inputs:
            total, lengths = len(earlier) + len(tokens), self.manifest["recompute_lengths"]
            message = f"{total} tokens are computed from the first one, since this model changes past {lengths} tokens"
            raise fail("BU029", message, help="reset the session, and pass all tokens with their inputs at once")
        self._engine.reset()
        self._cached = self._begin()
        certain = None if certain is None else len(earlier) + certain
        logits = self._process(earlier + tokens, inputs, last=last, certain=certain)[-len(tokens) :]
        self.hidden = {name: array[-len(tokens) :] for name, array in self.hidden.items()}
        return logits

    @contextmanager
    def _reserved(self, part: Part) -> Generator[Part]:
        """Reserves blocks for the tokens of a step. If the step fails, the session is reset."""
        reserved = self._engine.reserve(part.cached, len(part.tokens))
        assert reserved, "the cache holds a sequence of the whole context"
        with ExitStack() as failed:
            failed.callback(self.reset)
            yield part
            failed.pop_all()

    def generate(
        self,
        tokens: Iterable[SupportsIndex],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        eos: Iterable[SupportsIndex] = frozenset(),
        resume: bool = False,
    ) -> Iterator[int]:
        """Generates tokens of a new sequence until one of `eos`, `max_new_tokens`, or the end of the context.

        A token is one of the `top_k` most likely (0: any), of which `top_p` leaves those that reach this probability.
        `resume` reuses the common prefix with the previous sequence, and processes only the tokens after it.

        It starts when the first token is requested. Raises BU017 if another call used the session in the meantime.
        """
        check_sampling(temperature, top_p)
        top_k, max_new_tokens = integer("top_k", top_k, minimum=0), integer("max_new_tokens", max_new_tokens, minimum=0)
        random = np.random.default_rng(integer("seed", seed, minimum=0))
        prompt, ends = integers(tokens), frozenset(integer_list("eos", eos))
        check_input(len(prompt), self._engine.max_input_len)
        logits = self.begin(prompt, resume=resume)
        turn = self.turn
        token = next_token(logits, temperature, top_p, random, top_k) if max_new_tokens else 0
        for index in range(max_new_tokens):
            yield token
            if token in ends or index == max_new_tokens - 1:
                return
            if self.turn != turn:
                help = "a session holds one sequence: finish it first, or load the bundle twice"
                raise fail("BU017", "the session was used by another call during generate()", help=help)
            if len(self._cached.tokens) == self.max_seq_len:
                return
            start = time.perf_counter()
            token = self._next(token, temperature, top_p, random, top_k)
            self.stats.decode_seconds += time.perf_counter() - start
            self.stats.decode_tokens += 1

    def _next(self, token: int, temperature: float, top_p: float, random: np.random.Generator, top_k: int) -> int:
        """Processes a token, and samples the next one, on the device if the executor supports it."""
        total = len(self._cached.tokens) + 1
        if not self._engine.can_draw([self._cached]) or self._engine.outgrown(total) != self._cached.outgrown:
            return next_token(self._process([token], {}, decode=True)[0], temperature, top_p, random, top_k)
        draw = draw_of(temperature, top_p, random, top_k)
        with self._reserved(Part(self._cached, [token], total)) as part:
            (drawn,) = self._engine.draw([part], [draw])
        check_drawn(drawn)
        return drawn

    def _checked(self, given: Iterable[SupportsIndex], inputs: Mapping[str, np.ndarray]) -> list[int]:
        tokens = integers(given)
        check_vocabulary(tokens, self.manifest["vocab_size"])
        check_context(len(self._cached.tokens) + len(tokens), self.max_seq_len)
        wanted = {spec.name: (len(tokens), *spec.shape[1:]) for spec in self.interface.entries[-1].token_inputs}
        check_inputs({name: np.shape(array) for name, array in inputs.items()}, wanted, len(tokens))
        return tokens


def load(bundle: str | PathLike[str], executor: str | None = None) -> Session:
    """Opens a bundle for one sequence. Raises BU603 for an invalid bundle, BU609 for weights that do not fit it.

    `executor` names a device of the bundle's target (`bringup targets` lists them), else BU018; None is the target's
    default. Raises BU923 if the target is not installed. The digests of the files are not checked, because this would
    read all weights; `verify` checks them.
    """
    return Session(open_bundle(bundle, executor))
