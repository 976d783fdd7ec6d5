"""`bringup run --batch`: one JSON object for each input line, one for each output line, in the same order."""

from __future__ import annotations

import json
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.cli.parameters.drafts import say_accepted
from bringup.cli.tokens import SPEEDS, Writer, ends_of, tokenizer_of
from bringup.diagnostics import BringupError, Diagnostic, did_you_mean, fail
from bringup.shown import shown

if TYPE_CHECKING:
    from bringup.compile.runtime.batch import Batch
    from bringup.compile.runtime.request import Event, Request
    from bringup.compile.text.tokenizer import Tokenizer
    from bringup.render.progress import StageLines

NUMBER = (int, float)
TASK = (str, int, type(None))
NO_LORA = -1  # as null
FORM: Mapping[str, tuple[type, ...]] = {
    "tokens": (list,),
    "prompt": (str,),
    "max_new_tokens": (int,),
    "seed": (int,),
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": (int,),
    "lora": TASK,
}
WORDS: Mapping[tuple[type, ...], str] = {
    (list,): "a list of token ids",
    (str,): "a text",
    (int,): "an integer",
    NUMBER: "a number",
    TASK: "the name of a LoRA, or null",
}


def run_batch(path: Path, batch: Batch, defaults: Mapping[str, Any], lines: StageLines) -> None:
    """Runs the requests of a file. Raises BU042 for every invalid line, before anything runs."""
    from bringup.render.words import plural

    found = dict(_objects(path))
    needs_text = any(isinstance(given, dict) and "prompt" in given for given in found.values())
    tokenizer = tokenizer_of(batch, required=needs_text)
    requests = _requests(found, path, batch, tokenizer, defaults)
    start = time.perf_counter()
    ids = [batch.add(request) for request in requests]
    writers = {id: Writer(tokenizer, quiet=True) for id in ids}
    last: dict[int, Event] = {}
    printed = 0
    while batch:
        for event in batch.step():
            writers[event.id].push(event.token)
            if event.reason:
                writers[event.id].finish()
                last[event.id] = event
        while printed < len(ids) and ids[printed] in last:
            print(json.dumps(_answer(batch, writers[ids[printed]], last[ids[printed]])), flush=True)
            printed += 1
    seconds = time.perf_counter() - start
    new = sum(len(writer.tokens) for writer in writers.values())
    taken = sum(event.stats.prefill_tokens for event in last.values())
    counts = f"{plural(new, 'token')} for {plural(len(ids), 'request')} in {seconds:.2f} s"
    shared = f", {batch.shared_tokens:,} more shared" if batch.shared_tokens else ""
    if batch.unshared and len(ids) > 1:
        shared = f", none shared because of {batch.unshared}"
    preempted = f"; {plural(batch.preemptions, 'preemption')}" if batch.preemptions else ""
    speed = f"{counts}: {new / seconds:,.1f} tokens/s"
    lines.say("Generated", f"{speed}; prefill of {plural(taken, 'token')}{shared}{preempted}")
    if batch.drafts:
        say_accepted(lines, batch.drafts.stats)


def _answer(batch: Batch, writer: Writer, last: Event) -> dict[str, Any]:
    speeds = {name: getattr(replace(last.stats, load_seconds=batch.load_seconds), name) for name in SPEEDS}
    draft = {"draft": last.draft.to_json()} if last.draft else {}
    answer = {"tokens": writer.tokens, "text": writer.text, "reason": last.reason}
    return {**answer, **speeds, "weights": batch.manifest["weights"], **draft}


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each object, or the error of its line, by line number. Empty lines are counted and skipped."""
    from bringup.adapters.checkpoints.bounded_json import strict_json

    for number, line in enumerate(_read(path).removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            given = strict_json(line, finite=True)
        except ValueError as error:
            yield number, str(error)
        else:
            yield number, next(_misfits(given), given)


def _read(path: Path) -> bytes:
    from bringup.adapters.checkpoints.files import unreadable
    from bringup.system.os_errors import reason

    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        help = "--batch needs a file with one JSON object on each line, or - for stdin"
        raise fail("BU034", f"no such file or folder: `{path}`", help=help) from None
    except OSError as error:
        raise unreadable(path, f"cannot be read: {reason(error)}") from None


def _misfits(given: Mapping[str, Any]) -> Iterator[str]:
    """The errors in the keys of an object and their types."""
    for key, value in given.items():
        if key not in FORM:
            hint = did_you_mean(key, FORM) or f"the fields are {', '.join(f'`{known}`' for known in FORM)}"
            yield f"unknown field `{key}`; {hint}"
        elif type(value) not in FORM[key]:
            yield f"`{key}` is {shown(value)}, not {WORDS[FORM[key]]}"
        elif key == "tokens" and (wrong := [token for token in value if type(token) is not int]):
            yield f"token {shown(wrong[0])} is not an integer"
        elif key == "lora" and type(value) is int and value != NO_LORA:
            yield f'`lora` is {shown(value)}, and names of LoRAs are texts: write "{shown(value)}"'
    if ("tokens" in given) == ("prompt" in given):
        yield "give either `prompt` or `tokens`"


def _requests(
    found: Mapping[int, dict[str, Any] | str], path: Path, batch: Batch, tokenizer: Tokenizer | None,
    defaults: Mapping[str, Any],
) -> list[Request]:  # fmt: skip
    """The requests of all lines. Raises BU042 for each invalid line."""
    from bringup.compile.runtime.request import Request

    requests: list[Request] = []
    wrong: list[Diagnostic] = []
    eos = ends_of(batch, tokenizer)
    for number, given in found.items():
        if isinstance(given, str):
            wrong.append(_finding(number, given, path))
            continue
        settings = {**defaults, **given}
        prompt, tokens = settings.pop("prompt", None), settings.pop("tokens", None)
        try:
            tokens = tokenizer.encode(prompt) if tokenizer and tokens is None else tokens
            requests.append(Request(tokens, eos=eos, **settings))
            batch.check(requests[-1])
        except BringupError as error:
            wrong += (_finding(number, each.message, path, _help(each, given)) for each in error.findings)
    if wrong:
        raise BringupError(*wrong)
    return requests


def _help(found: Diagnostic, given: Mapping[str, Any]) -> str:
    """The help of a finding, as it applies to a line: LoRAs are options of the command."""
    return f"name its files: --lora {given['lora']}=PATH" if found.code == "BU620" else found.help


def _finding(number: int, message: str, path: Path, help: str = "") -> Diagnostic:
    return Diagnostic(code="BU042", message=f"line {number}: {message}", help=help, file=str(path))
