"""Renders a chat template: a script that runs in a limited process, with JSON on stdin and stdout.

The environment is that of transformers' `apply_chat_template` (`utils/chat_template_utils.py`), whose names, filters
and tags published templates use.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MOST = 4 << 20  # characters of a result: a million tokens


def render(template: str, variables: dict[str, Any]) -> str:
    """The text of a template. Raises the errors of jinja2, and those of operations in the template."""
    from datetime import datetime

    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the model's answers, for training; it does not change the text."""

        tags = {"generation"}  # noqa: RUF012  jinja2's own declaration

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    sandbox.filters["tojson"] = tojson
    helpers = {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return sandbox.from_string(template, helpers).render(variables)


def main() -> None:
    """Reads the request, renders the template, writes the answer."""
    request = json.load(sys.stdin)
    try:
        text = render(request["template"], request["variables"])
        answer = {"text": text} if len(text) <= MOST else {"error": f"its text has {len(text):,} characters"}
    except ImportError as error:
        answer = {"missing": error.name}
    except MemoryError:
        sys.exit(3)
    except Exception as error:  # any error of an operation in a template is reported as an error of the template
        kind = "" if type(error).__name__ == "TemplateError" else f"{type(error).__name__}: "
        answer = {"error": f"{kind}{str(error)[:500]}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
