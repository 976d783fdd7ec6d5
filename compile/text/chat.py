"""Renders a conversation with the model's chat template, in a sandboxed process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from bringup.compile.text.limited_process import LimitExceeded, confined
from bringup.diagnostics import fail

SECONDS, MEGABYTES = 0.6, 160  # a published template needs 0.07 s, most of it the start of Python


VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")  # those that `render` sets itself

DEVELOPER = "developer"


class Message(TypedDict):
    """One message of a conversation."""

    role: str  # "system", "user" or "assistant"; "developer" is OpenAI's newer name of "system"
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A jinja2 template, and the tokens that it may refer to (`bos_token`, `eos_token`, …)."""

    template: str
    named: Mapping[str, str] = field(default_factory=dict[str, str])

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> str:
        """The text up to the beginning of the model's answer; `variables` are further ones of the template.

        The role "developer" is "system" for a template that does not name it.
        Raises BU611 for an error of the template, BU612 if it exceeds its limits, BU922 without jinja2.
        """
        given = dict(zip(VARIABLES, (list(map(self._known, messages)), None, None, True), strict=True))
        named = {**self.named, **(variables or {}), **given}
        request = json.dumps({"template": self.template, "variables": named}).encode()
        try:
            answer = json.loads(confined("chat_render.py", request, seconds=SECONDS, megabytes=MEGABYTES))
        except LimitExceeded as error:
            help = "use a template that the model's authors published: they stay far below this limit"
            raise fail("BU612", f"the chat template {error}", help=help) from None
        if "missing" in answer:
            help = f"run: pip install {answer['missing']}"
            raise fail("BU922", f"the package `{answer['missing']}` is not installed", help=help)
        if "error" in answer:
            help = "the template may not support a part of it, such as a system message; `--prompt` needs no template"
            raise fail("BU611", f"the chat template rejects the conversation: {answer['error']}", help=help)
        return answer["text"]

    def _known(self, message: Message) -> Message:
        if message["role"] != DEVELOPER or DEVELOPER in self.template:
            return message
        return {"role": "system", "content": message["content"]}
