r"""Helpers for authors of tool-call parsers: wait for text, read JSON, use a tool's schema, write rules for a grammar.

`agentrl_core.api.tool_parsers` specifies a parser. Any of these modules may help to write one:

- `source`: the reply's text as far as it is known. Each query, such as `find`, waits until its answer is certain.
- `json_text`: strict reading of a call's JSON, which keeps the text as the model wrote it.
- `schemas`: names, properties and types of the request's tools; values that were written as bare text.
- `tagged`: elements with bare text between tags, as in `<key>text</key>`.
- `call_rules`: Lark rules for `ToolParser.grammar`.

A parser of replies such as `CALL weather {"city": "Paris"}`:

    from agentrl_core.api.parsing.json_text import read_arguments
    from agentrl_core.api.parsing.source import Marks
    from agentrl_core.api.tool_parsers import MalformedCallError

    _OPEN = "CALL "
    _OPENS, _NAME_END = Marks((_OPEN,)), Marks(("{", "\n"))

    class CallParser:
        openers, starters, frames_text = (_OPEN,), (), False

        @classmethod
        def recognise(cls, template):
            return cls() if _OPEN in template else None

        def read(self, source, sink, tools):
            begin = source.at + len(_OPEN)
            _, at = yield from source.find(_NAME_END, begin)
            name = source.text[begin:at].strip()
            end, _ = yield from source.json_end(at)
            try:
                if not name:
                    raise MalformedCallError("tool call has no name")
                sink.call(name, read_arguments(name, source.text[at:end]))
            except MalformedCallError as error:
                _, end = yield from source.find(_OPENS, begin)
                sink.malformed(source.text[source.at:end], str(error))
            source.at = end

        def grammar(self, tools, *, parallel, mark):
            return None
"""
