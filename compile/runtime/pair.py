"""Whether two bundles can run as a main model and its draft, and how the draft proposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.compile.bundle.folder import TOKENIZER
from bringup.compile.program.program import Interface
from bringup.compile.program.step_inputs import checked_tokens
from bringup.compile.runtime.opening import Opened
from bringup.compile.runtime.proposals import HiddenProposer, Proposer, TokenProposer
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.graph import HIDDEN, OWN, MainState
from bringup.shown import shown

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer

LAST: Sequence[MainState] = (-1,)


def proposer_of(main: Session, draft: Session, count: int) -> Proposer:
    """The proposer of a draft that proposes up to `count` tokens a step. Raises BU049 if the two do not fit.

    A draft with the input `hidden` reads hidden states of the main model, which its manifest lists (`main_states`): the
    output `hidden.N` is the one after N layers, for all of them the input of the head.
    """
    if main is draft:
        raise _unfit("the main model and its draft are one session", "load the bundle twice")
    _check_main(main, count)
    _check_vocabularies(main, draft)
    _check_rewind(draft.interface, "the draft", count)
    inputs = draft.interface.entries[-1].token_inputs
    if not inputs:
        return TokenProposer(draft)
    if draft.interface.recurrent:
        raise _unfit("the draft has recurrent layers, and reads hidden states", "use a draft that reads tokens alone")
    if [spec.name for spec in inputs] not in ([HIDDEN], [HIDDEN, OWN]):
        names = ", ".join(f"`{spec.name}`" for spec in inputs)
        raise _unfit(f"the draft reads {names}; only `{HIDDEN}` and `{OWN}` are known", "call its session yourself")
    return _hidden_proposer(main, draft, count)


def check_batches(main: Opened, draft: Opened, count: int) -> None:
    """Raises BU049 if two bundles cannot run several sequences as a main model and its draft, which proposes up to
    `count` tokens a step for each."""
    _check_main(main, count, main.interface.max_batch_size)
    _check_vocabularies(main, draft)
    _check_rewind(draft.interface, "the draft", count)
    if inputs := draft.interface.entries[-1].token_inputs:
        message = f"the draft reads `{inputs[0].name}`: a batch supports only drafts that read tokens alone"
        raise _unfit(message, "decode one sequence at a time: `bringup run`, without --batch")


def _check_rewind(model: Interface, name: str, count: int) -> None:
    """Raises BU049 if tokens that are not accepted could not be removed from the states of a model or a draft."""
    most = model.rewindable
    if model.recurrent:
        tokens = max((each.num_tokens // each.num_sequences for each in model.entries if each.proposals), default=1)
        if tokens >= checked_tokens(count, recurrent=True):
            return
        fewer = (tokens - 1) // 2
        message = f"{name} has recurrent layers, and its steps support {fewer} proposals, not {count}"
        help = f"compile it with --draft-tokens {count}"
        raise _unfit(message, f"{help}, or use --draft-tokens {fewer}" if fewer else help)
    if most is not None and count > most:
        raise _unfit(f"{name} can remove {most} tokens, not {count}, from its states", f"use --draft-tokens {most}")


def _check_main(main: Session | Opened, count: int, sequences: int = 1) -> None:
    if inputs := main.interface.entries[-1].token_inputs:
        names = ", ".join(f"`{spec.name}`" for spec in inputs)
        raise _unfit(f"`{main.folder}` reads {names} besides tokens: it is a draft", "exchange the two bundles")
    _check_rewind(main.interface, f"`{main.folder}`", count)
    sizes, needed = main.interface.prefill_sizes(sequences), sequences * (count + 1)
    if not main.interface.all_logits:
        message = f"`{main.folder}` returns the logits of the last token of a step, not of each"
    elif max(sizes) < needed:
        message = f"a step of `{main.folder}` has up to {max(sizes)} tokens, not {needed}"
    else:
        return
    raise _unfit(message, f"compile it with --draft-tokens {count}")


def _check_vocabularies(main: Session | Opened, draft: Session | Opened) -> None:
    """Raises BU049 if a token id has another meaning for the draft, as far as the bundles state it."""
    sizes = [session.manifest["vocab_size"] for session in (main, draft)]
    if sizes[0] != sizes[1]:
        message = f"the vocabulary of `{draft.folder}` has {sizes[1]:,} tokens, that of `{main.folder}` {sizes[0]:,}"
        raise _unfit(message, "use a draft with the same vocabulary")
    if _tokenizer_files(main) == _tokenizer_files(draft):
        return
    tokenizers = [_tokenizer(session) for session in (main, draft)]
    if None in tokenizers:
        return
    ids: list[dict[int, str]] = [
        {number: token for token, number in each.backend.get_vocab(with_added_tokens=True).items()}
        for each in tokenizers
        if each
    ]
    differing = sorted(number for number in ids[0].keys() | ids[1].keys() if ids[0].get(number) != ids[1].get(number))
    if differing:
        theirs = " but ".join(shown(each.get(differing[0])) for each in ids)
        message = (
            f"{len(differing):,} token ids differ in the tokenizer of `{draft.folder}`: {differing[0]} is {theirs}"
        )
        raise _unfit(message, "use a draft with the same tokenizer")


def _tokenizer_files(session: Session | Opened) -> dict[str, Any]:
    files: dict[str, Any] = session.manifest["files"]
    return {name: digest for name, digest in files.items() if name == f"{TOKENIZER}/tokenizer.json"}


def _tokenizer(session: Session | Opened) -> Tokenizer | None:
    try:
        return session.tokenizer()
    except BringupError as error:
        if error.findings[0].code == "BU014":
            return None
        raise


def _hidden_proposer(main: Session, draft: Session, count: int) -> Proposer:
    if (depth := draft.manifest["config"].get("mtp_depth", 1)) != 1:
        raise _unfit(f"`{draft.folder}` is draft {depth}, which follows another draft", "compile it with `mtp_depth` 1")
    layers = num_layers(main.interface)
    numbers = state_numbers(draft.manifest.get("main_states") or LAST, layers)
    if not 0 <= min(numbers) <= max(numbers) <= layers:
        message = f"the draft reads hidden states {numbers} of its main model, and `{main.folder}` has {layers} layers"
        raise _unfit(message, "use the draft of this model")
    names = [f"hidden.{number}" for number in numbers]
    _check_outputs(
        main, names, "the draft reads " + ("hidden states of it" if numbers[1:] else "its last hidden state")
    )
    width, widths = draft.interface.entries[-1].token_inputs[0].shape[-1], [_width(main, name) for name in names]
    if width != sum(widths):
        message = (
            f"the draft reads {width} channels of hidden states, and `{main.folder}` has {' + '.join(map(str, widths))}"
        )
        raise _unfit(message, "use the draft of this model")
    own = f"hidden.{num_layers(draft.interface)}"
    if count > 1:
        _check_outputs(draft, [own], f"its own last hidden state is read for {count} tokens a step")
    return HiddenProposer(draft, main, names, own)


def state_numbers(states: Sequence[MainState], layers: int) -> list[int]:
    """The hidden states of a main model with so many layers, each by the number of layers before it."""
    return [layers // 2 if each == "middle" else each if each >= 0 else layers + 1 + each for each in states]


def _width(session: Session, name: str) -> int:
    """The channels of an output."""
    interface = session.interface
    entry = interface.entries[-1]
    values = [spec.shape for spec in entry.inputs]
    for call in entry.calls:
        values += [shape for shape, _ in interface.function(call.function).results]
    return values[entry.outputs[name]][-1]


def num_layers(interface: Interface) -> int:
    """The number of layers of a program."""
    stages = (call.function.rpartition(".")[2] for call in interface.entries[-1].calls)
    return sum(stage.startswith("layer") for stage in stages)


def _check_outputs(session: Session, names: Sequence[str], reason: str) -> None:
    outputs = session.interface.entries[-1].outputs
    if absent := [name for name in names if name not in outputs]:
        listed = ", ".join(f"`{name}`" for name in absent)
        help = "compile it with " + " ".join(f"--aux-hidden {name.rpartition('.')[2]}" for name in names)
        raise _unfit(f"`{session.folder}` has no output {listed}: {reason}", help)


def _unfit(message: str, help: str) -> BringupError:
    return fail("BU049", message, help=help)
