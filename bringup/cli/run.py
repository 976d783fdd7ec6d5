"""`bringup run`: generates text, or token ids, from a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from bringup.cli.batch import run_batch
from bringup.cli.bundles import note_dummy
from bringup.cli.chat import opened, user_prompts
from bringup.cli.launches.profile import profiled
from bringup.cli.parameters.drafts import check_draft, draft_options, loaded, say_accepted
from bringup.cli.parameters.loras import chosen_lora, run_lora_options
from bringup.cli.parameters.targets import DEVICE
from bringup.cli.parameters.words import BUNDLE, NEW_FILE, Number
from bringup.cli.tokens import SPEEDS, TOKENS, Writer, ends_of, reason_of, tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bringup.compile.runtime.session import Session
    from bringup.compile.runtime.speculative import Speculative
    from bringup.compile.text.tokenizer import Tokenizer
    from bringup.render.progress import StageLines


class Sampling(TypedDict):
    """The options of `Session.generate`, as click passes them."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int


@click.command("run")
@click.argument("bundle", type=BUNDLE)
@click.option("--prompt", metavar="TEXT", help="The text to continue.")
@click.option("--tokens", type=TOKENS, metavar="IDS", help="Token ids instead of a prompt: 1,2,3.")
@click.option("--chat", is_flag=True, help="The prompt, or each line of stdin, is a message; the model answers.")
@click.option(
    "--batch",
    "batch_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON lines, one request each: prompt or tokens, max_new_tokens, seed, temperature, top_p, top_k, lora. "
    "- is stdin.",
)
@click.option("--system", metavar="TEXT", help="With --chat: the system message.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    metavar="N",
    help="The largest number of tokens to generate.",
)
@click.option(
    "--temperature",
    type=Number(0),
    default=0.0,
    show_default=True,
    metavar="T",
    help="Sampling temperature; 0: greedy.",
)
@click.option(
    "--top-p",
    type=Number(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="Sample from the most likely tokens whose probabilities add up to P; 1: from all.",
)
@click.option(
    "--top-k", type=click.IntRange(0), default=0, metavar="K", help="Sample from the K most likely tokens; 0: from all."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S", help="Seed of sampling.")
@draft_options(default="4, or 1 for an MTP layer")
@click.option("--executor", type=DEVICE, metavar="NAME", help="A device of the bundle's target (`bringup targets`).")
@click.option(
    "--profile",
    type=NEW_FILE,
    metavar="FILE",
    help="Measure each launch, print a table and write a Chrome trace, for bundles with kernels.",
)
@run_lora_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each answer instead of streamed text.")
def command(
    bundle: Path, prompt: str | None, tokens: list[int] | None, chat: bool, system: str | None, executor: str | None,
    batch_file: Path | None, profile: Path | None, as_json: bool, max_new_tokens: int, temperature: float,
    top_p: float, top_k: int, seed: int, draft: Path | None, draft_tokens: int | None, lora: dict[str, str],
    lora_name: str | None,
) -> None:  # fmt: skip
    """Generate from BUNDLE. Text goes to stdout, everything else to stderr."""
    _check_usage(chat, prompt, tokens, system, batch_file, draft, draft_tokens)
    chosen = chosen_lora(lora, lora_name, batched=batch_file is not None)
    from bringup.compile.runtime.batch import load_batch
    from bringup.compile.runtime.session import load
    from bringup.render.progress import StageLines

    lines = StageLines()
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    if batch_file is not None:
        with lines.stage(f"Loading {loaded(bundle, draft)}"):
            batch = load_batch(bundle, executor, draft=draft, draft_tokens=draft_tokens)
            for name, path in lora.items():
                batch.loras.add(name, batch.read_lora(path))
        note_dummy(batch.manifest)
        if batch.drafts:
            note_dummy(batch.drafts.manifest)
        with profiled(batch.executor, profile, lines):
            run_batch(batch_file, batch, sampling, lines)
        return
    with lines.stage(f"Loading {bundle}"):
        session = load(bundle, executor)
        if chosen is not None:
            session.use_lora(chosen, session.read_lora(lora[chosen]))
    note_dummy(session.manifest)
    pair = _with_draft(session, draft, draft_tokens, lines) if draft else None
    tokenizer = tokenizer_of(session, required=tokens is None)
    with profiled(session.executor, profile, lines):
        if tokenizer and chat:
            conversation = opened(tokenizer, system)
            for message in user_prompts(prompt):
                ids = conversation.user_message(message)
                answer = _generate(session, pair, tokenizer, ids, sampling, lines, as_json=as_json, resume=True)
                conversation.heard(answer)
            return
        ids = tokenizer.encode(prompt) if tokenizer and prompt is not None else tokens or []
        _generate(session, pair, tokenizer, ids, sampling, lines, as_json=as_json)


def _check_usage(
    chat: bool, prompt: str | None, tokens: list[int] | None, system: str | None, batch_file: Path | None,
    draft: Path | None, draft_tokens: int | None,
) -> None:  # fmt: skip
    """Raises click.UsageError for options that do not fit together."""
    if chat and tokens is not None:
        raise click.UsageError("--chat needs --prompt TEXT, or messages from stdin; leave --tokens out")
    if batch_file is not None and (chat or prompt is not None or tokens is not None):
        raise click.UsageError("--batch FILE has the prompts; leave --prompt, --tokens and --chat out")
    if batch_file is None and not chat and (prompt is None) == (tokens is None):
        raise click.UsageError("give --prompt TEXT, --tokens 1,2,3 or --batch FILE")
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat")
    check_draft(draft, draft_tokens)


def _with_draft(session: Session, bundle: Path, draft_tokens: int | None, lines: StageLines) -> Speculative:
    """The session with its draft, which runs on the same device if its target is the same."""
    from bringup.compile.bundle.folder import read_manifest
    from bringup.compile.runtime.session import load
    from bringup.compile.runtime.speculative import Speculative

    with lines.stage(f"Loading {bundle}"):
        same = read_manifest(bundle)["target"] == session.manifest["target"]
        draft = load(bundle, session.device if same else None)
    note_dummy(draft.manifest)
    return Speculative(session, draft, draft_tokens)


def _generate(
    session: Session, pair: Speculative | None, tokenizer: Tokenizer | None, ids: Sequence[int], sampling: Sampling,
    lines: StageLines, *, as_json: bool, **how: bool,
) -> str:  # fmt: skip
    """Writes the tokens that follow `ids`, and returns their text."""
    writer, ends = Writer(tokenizer, quiet=as_json), ends_of(session, tokenizer)
    for token in (pair or session).generate(ids, eos=ends, **sampling, **how):
        writer.push(token)
    writer.finish()
    reason = reason_of(writer.tokens, ends, sampling["max_new_tokens"])
    speeds: dict[str, float] = {name: getattr(session.stats, name) for name in SPEEDS}
    if as_json:
        result = {"tokens": writer.tokens, "text": writer.text, "reason": reason}
        result |= {**speeds, "weights": session.manifest["weights"]}
        result |= {"draft": pair.stats.to_json()} if pair else {}
        print(json.dumps(result), flush=True)
    prefill, decode, _ = (f"{speed:,.1f} tokens/s" for speed in speeds.values())
    full = ", until the context was full" if reason == "context" else ""
    lines.say("Generated", f"{len(writer.tokens)} tokens{full}; prefill {prefill}, decode {decode}")
    if pair:
        say_accepted(lines, pair.stats)
    return writer.text or ""
