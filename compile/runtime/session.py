"""A bundle that runs: prompts in, tokens out. Imports no torch unless the bundle's target is torch."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from bringup.adapters.checkpoints.arrays import mapped, numpy_dtype
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.arguments import path as as_path
from bringup.arguments import whole, whole_numbers
from bringup.compile.bundle.folder import TOKENIZER, WEIGHTS, check_files, read_manifest, steady
from bringup.compile.bundle.manifest import program_of
from bringup.compile.program.program import Executor, Interface
from bringup.compile.program.step_inputs import chunks_of, make_step
from bringup.compile.runtime.sampling import check_sampling, next_token
from bringup.diagnostics import BringupError, fail
from bringup.shown import shown

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Stats:
    """Seconds and counts of the latest `generate`, and of loading."""

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


class Session:
    """One sequence at a time on one executor. A step that fails leaves no sequence: the session is reset."""

    def __init__(self, manifest: dict[str, Any], executor: Executor, interface: Interface, folder: Path) -> None:
        self.manifest = manifest
        self.executor = executor
        self.interface = interface
        self.folder = folder
        self.stats = Stats()
        self.max_seq_len: int = manifest["max_seq_len"]
        self.hidden: dict[str, np.ndarray] = {}  # of the tokens taken in last, [N, m] each: `hidden.3`, …
        self._tokens: list[int] = []  # those taken in
        self._outgrown = 0  # how many of the manifest's `recompute_lengths` they were longer than
        self._turn = 0  # goes up with every use from outside: a `generate` under way sees that it was overtaken

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises BU014 when it has none, BU608 when it is not the one it was compiled with."""
        from bringup.compile.text.tokenizer import load_tokenizer

        if not (self.folder / TOKENIZER).is_dir():
            raise fail("BU014", f"`{self.folder}` has no tokenizer", help="give token ids with --tokens 1,2,3")
        files = {name: digest for name, digest in self.manifest["files"].items() if name.startswith(f"{TOKENIZER}/")}
        check_files(self.folder, {"files": files})  # another bundle may stand there by now
        return load_tokenizer(self.folder / TOKENIZER / "tokenizer.json", trusted=True)

    def reset(self) -> None:
        """Forgets the sequence."""
        self._turn += 1
        self._tokens = []
        self.executor.reset()

    def _rewind(self, tokens: Sequence[SupportsIndex]) -> None:
        """Keeps the common prefix of the sequence and `tokens`, except the last of `tokens`, whose logits are needed.

        The states of later tokens are masked, and overwritten.
        """
        self._turn += 1
        pairs = zip(self._tokens, list(tokens)[:-1], strict=False)
        self._tokens = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    def prefill(self, tokens: Iterable[SupportsIndex], **inputs: np.ndarray) -> np.ndarray:
        """Appends tokens to the sequence. Logits of the last one, or of every one: float32 [R, V].

        `inputs` are the model's further inputs, a row for each token; they are cast to its dtype.
        Raises BU015 for what is no token, BU016 when the context has no room for them, BU029 for other inputs.
        """
        self._turn += 1
        return self._take(self._checked(tokens, inputs), inputs)

    def decode(self, token: SupportsIndex, **inputs: np.ndarray) -> np.ndarray:
        """One more token: its logits, float32 [V]. Raises as `prefill` does."""
        self._turn += 1
        return self._take(self._checked([token], inputs), inputs, decode=True)[0]

    def _take(self, tokens: list[int], inputs: Mapping[str, np.ndarray], *, decode: bool = False) -> np.ndarray:
        total = len(self._tokens) + len(tokens)
        outgrown = sum(total > length for length in self.manifest["recompute_lengths"])
        if self._tokens and outgrown != self._outgrown:
            return self._take_again(tokens, inputs)
        self._outgrown = outgrown
        sizes = [entry.num_tokens for entry in self.interface.entries if entry.num_tokens > 1]
        outputs: list[dict[str, np.ndarray]] = []
        at = 0
        for count, size in [(1, 1)] if decode else chunks_of(len(tokens), sizes):
            rows = {name: array[at : at + count] for name, array in inputs.items()}
            results = self._run("decode" if decode else f"prefill_{size}", tokens[at : at + count], size, total, rows)
            outputs.append({name: array[:count] for name, array in results.items()})
            at += count
        self.hidden = {
            name: np.concatenate([results[name] for results in outputs]) for name in outputs[0] if name != "logits"
        }
        logits = [results["logits"] for results in outputs]
        return np.concatenate(logits) if self.interface.all_logits else logits[-1]

    def _take_again(self, tokens: list[int], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The states of all tokens anew; the results of the last ones, `tokens`."""
        if inputs:
            total, lengths = len(self._tokens) + len(tokens), self.manifest["recompute_lengths"]
            said = f"{total} tokens are computed from the first one, since this model changes past {lengths} tokens"
            raise fail("BU029", said, help="reset the session, and give all tokens with their inputs at once")
        earlier, self._tokens = self._tokens, []
        self.executor.reset()
        logits = self._take(earlier + tokens, inputs)[-len(tokens) :]
        self.hidden = {name: array[-len(tokens) :] for name, array in self.hidden.items()}
        return logits

    def generate(
        self,
        tokens: Iterable[SupportsIndex],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        eos: Iterable[SupportsIndex] = frozenset(),
        resume: bool = False,
    ) -> Iterator[int]:
        """New tokens of a fresh sequence, one by one, until one of `eos`, the number wanted, or the context's end.

        `resume` takes in only what comes after the tokens that the sequence before began with as well.

        It begins with the first token asked for. Raises BU017 when another call used the session meanwhile.
        """
        check_sampling(temperature, top_p)
        max_new_tokens = whole("max_new_tokens", max_new_tokens, least=0)
        random = np.random.default_rng(whole("seed", seed, least=0))
        prompt, ends = integers(tokens), frozenset(whole_numbers("eos", eos))
        if resume:
            self._rewind(prompt)
        else:
            self.reset()
        turn, prompt = self._turn, self._checked(prompt[len(self._tokens) :], {})
        start = time.perf_counter()
        logits = self._take(prompt, {})[-1]
        self.stats = Stats(self.stats.load_seconds, len(prompt), time.perf_counter() - start)
        for index in range(max_new_tokens):
            token = next_token(logits, temperature, top_p, random)
            yield token
            if token in ends or index == max_new_tokens - 1:
                return
            if self._turn != turn:
                help = "a session holds one sequence: finish it first, or load the bundle twice"
                raise fail("BU017", "the session was used by another call during generate()", help=help)
            if len(self._tokens) == self.max_seq_len:
                return
            start = time.perf_counter()
            logits = self._take([token], {}, decode=True)[0]
            self.stats.decode_seconds += time.perf_counter() - start
            self.stats.decode_tokens += 1

    def _run(
        self, entry: str, tokens: list[int], size: int, total: int, rows: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        step = make_step(tokens, len(self._tokens), size, self.max_seq_len, total)
        specs = {spec.name: numpy_dtype(spec.dtype) for spec in self.interface.entries[-1].inputs}
        cast = {name: np.asarray(rows[name], dtype) for name, dtype in specs.items()}
        padded = {name: np.pad(array, ((0, size - len(array)), (0, 0))) for name, array in cast.items()}
        with ExitStack() as failed:
            failed.callback(self.reset)
            results = self.executor.step(entry, step | padded)
            failed.pop_all()
        self._tokens += tokens
        return results | {"logits": results["logits"].astype(np.float32)}

    def _checked(self, given: Iterable[SupportsIndex], inputs: Mapping[str, np.ndarray]) -> list[int]:
        vocab: int = self.manifest["vocab_size"]
        tokens = integers(given)
        wrong = [token for token in tokens if not 0 <= token < vocab]
        if wrong or not tokens:
            said = f"token {wrong[0]} is not in the vocabulary of {vocab}" if wrong else "there are no tokens"
            raise fail("BU015", said)
        if len(self._tokens) + len(tokens) > self.max_seq_len:
            raise fail(
                "BU016",
                f"{len(self._tokens) + len(tokens)} tokens do not fit the bundle's context of {self.max_seq_len}",
                help="compile with a larger --max-seq-len",
            )
        wanted = {spec.name: (len(tokens), *spec.shape[1:]) for spec in self.interface.entries[-1].inputs}
        if (found := {name: np.shape(array) for name, array in inputs.items()}) != wanted:
            raise fail(
                "BU029", f"inputs {found or 'none'}: this model takes {wanted or 'none'} with {len(tokens)} tokens"
            )
        return tokens


def integers(tokens: Iterable[SupportsIndex]) -> list[int]:
    """Token ids, from any iterable. Raises BU015 for what is no integer, and for what is no iterable."""
    try:
        listed = list(tokens)
    except TypeError:  # a number; a torch tensor or an array of no dimensions
        raise fail("BU015", f"tokens are integers in a list, not a {type(tokens).__name__}") from None
    return [_integer(token) for token in listed]


def _integer(token: SupportsIndex) -> int:
    try:
        return operator.index(token)
    except TypeError:
        raise fail("BU015", f"token {shown(token)} is not an integer") from None


def load(bundle: str | PathLike[str], executor: str | None = None) -> Session:
    """Opens a bundle for running. Raises BU603 when it is none, BU609 when its weights are not its program's.

    `executor` names an IREE device, "local-task" when None; a torch bundle has no choice of one: BU018. That the files
    are those that were compiled is not checked, since it costs a read of all weights; `verify` does that. A bundle that
    is replaced meanwhile is opened again: what is loaded is all of one compile.
    """
    start = time.perf_counter()
    folder = Path(as_path("bundle", bundle))
    while True:
        with steady(folder) as same:
            try:
                session = _load(folder, executor)
            except (OSError, RuntimeError, BringupError):
                if same():
                    raise
                continue  # a compile has put another bundle there meanwhile
            if same():
                session.stats.load_seconds = time.perf_counter() - start
                return session


def _load(folder: Path, executor: str | None) -> Session:
    manifest = read_manifest(folder)
    if executor is not None:
        _check_executor(executor, manifest["target"])
    interface = Interface.from_json(manifest["interface"])
    weights = _weights(folder, manifest)
    with program_of(folder):
        device = _executor(folder, manifest["target"], interface, weights, executor)
    return Session(manifest, device, interface, folder)


def _executor(
    folder: Path, target: str, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
) -> Executor:
    if target == "torch":
        from bringup.compile.targets.torch_executor import TorchExecutor, load_functions

        return TorchExecutor(load_functions(folder / "programs", interface), interface, weights)
    from bringup.compile.targets.iree_executor import IreeExecutor

    vmfb = (folder / "module.vmfb").read_bytes()
    return IreeExecutor(vmfb, interface, weights, device=device or "local-task")


def _check_executor(name: str, target: str) -> None:
    if target == "torch":
        raise fail("BU018", f"a torch bundle has no executor `{name}`", help="leave it out: torch runs it on the CPU")
    from iree import runtime  # pyright: ignore[reportMissingTypeStubs]

    try:
        runtime.get_device(as_path("executor", name))  # pyright: ignore[reportUnknownMemberType]
    except (ValueError, RuntimeError) as error:  # not a driver's name; a driver whose library is not there
        known = ", ".join(runtime.query_available_drivers())
        raise fail("BU018", f"there is no executor `{name}`: {error}", help=f"IREE has {known}") from error


def _weights(folder: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every weight, mapped from its file; a tied one is the same memory under two names."""
    path = folder / WEIGHTS
    arrays = {name: mapped(path, info) for name, info in read_header(path).items()}
    return arrays | {name: arrays[first] for name, first in manifest["aliases"].items() if first in arrays}
