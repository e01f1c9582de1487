"""Render a model's chat template: the jinja2 dialect of Hugging Face, in a sandbox, without importing transformers."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from agentrl_core.chat.images import for_template
from agentrl_core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Message

_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""Exceptions that a template raises on messages that it was not written for. A lone surrogate is a ValueError
(UnicodeEncodeError), raised when the text is encoded."""


class ChatTemplate:
    """Compiled chat template with its variables (`bos_token` and the like)."""

    def __init__(
        self, source: str, variables: Mapping[str, str] | None = None, *, where: str = "chat template"
    ) -> None:
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{where}: line {error.lineno} is not valid jinja2: {error.message}") from error
        self._text_arguments = self._takes_text_arguments()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation; `RequestError` (400) quotes the template's own message if it refuses.

        `options` are additional template variables, `enable_thinking` for example.
        """
        messages = [for_template(message) for message in messages]
        if not self._text_arguments:
            messages = [_with_parsed_arguments(message) for message in messages]
        try:
            text = self._template.render(
                messages=messages,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **(self._variables if not options else {**self._variables, **options}),
            )
            text.encode()  # the tokenizer takes valid Unicode only: no lone surrogates
        except _REFUSALS as error:
            raise RequestError(
                400, "invalid_messages", f"the model's chat template refused these messages: {error}", param="messages"
            ) from error
        return text

    def _takes_text_arguments(self) -> bool:
        """Return whether the template prints a call's arguments verbatim if they are given as JSON text.

        Text is preferred, because it keeps the arguments exactly as they were sampled. But a template that only knows
        objects would print the text as a quoted string.
        """
        self._text_arguments = True
        # Two spaces after the colon: arguments that were parsed and printed again would have one.
        arguments = '{"probe":  1}'
        call = {"id": "call_0", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        try:
            text = self.render(
                [
                    {"role": "user", "content": "."},
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "content": ".", "tool_call_id": "call_0"},
                ]
            )
        except RequestError:
            return False
        return arguments in text


class _Generation(jinja2.ext.Extension):
    """Accept `{% generation %}…{% endgeneration %}` as plain text; other tools mark trained text with it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_DICT_ATTRIBUTES = frozenset(dir(dict))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with a fast path for the most frequent expression of templates: a field of a message."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute, or else an item, as the sandbox does.

        The fast path skips the sandbox's checks. That is safe for a plain dict and a name that is no attribute of dict.
        """
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass these by position and by name
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON without the HTML escaping of jinja2's own `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(form)  # noqa: DTZ005 - templates print the local date


def _with_parsed_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_parsed_call(call) for call in calls]}


def _with_parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError, RecursionError):  # not JSON: the template shows what is there
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}
