"""Generator of cookbook/config.md, which lists every option of both configs: `python -m tests.config.config_page`."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs

from agentrl_core.config import schema, sft, training_sections
from agentrl_core.config.component import Component
from agentrl_core.config.yaml_text import write_yaml

PAGE = Path(__file__).parents[2] / "cookbook" / "config.md"
_HEAD = """\
# Every option

`python -m tests.config.config_page` generates this page from the config classes; a test keeps it up to date.
`agentrl config show config.yaml` prints a config with all defaults, and `agentrl config check config.yaml` its
problems. `a.b=c` on the command line sets an option. A *component* is written `{use: NAME, …options}`, or just `NAME`;
`agentrl plugins list` shows the names, and `file.py:name` is your own. Its options are its constructor's arguments.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "\n## `agentrl run`\n"]
    parts += _section(schema.RunConfig, "")
    parts += ["\n## `agentrl sft`\n\nOptions that are the same as for `agentrl run` are left out.\n"]
    parts += _section(sft.SftConfig, "")
    return "\n".join(parts) + "\n"


def docstrings(section: type) -> dict[str, str]:
    """Option -> the text below its definition."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for item, after in itertools.pairwise(body):
        if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[item.target.id] = " ".join(str(after.value.value).split())  # type: ignore[union-attr]
    return found


def _section(section: type, prefix: str) -> Iterator[str]:
    told, hints = docstrings(section), get_type_hints(section)
    counterpart = sft.COUNTERPARTS.get(section)
    same = dict(_rows(counterpart)) if counterpart else {}
    rows, nested = [], []
    for field in attrs.fields(section):
        kind = _section_in(hints[field.name])
        name = f"{prefix}{field.name}"
        if kind is not None:
            nested.append((kind, f"{name}.{'NAME.' if 'Mapping' in str(hints[field.name]) else ''}"))
        elif same.get(field.name) != (row := f"{_default(field)} | {_cell(hints[field.name], told[field.name])}"):
            rows.append(f"| `{name}` | {row} |")
    title = prefix.rstrip(".") or "the config itself"
    if rows:
        about = inspect.getdoc(section) or ""
        yield f"### {'`' + title + '`' if prefix else 'Top level'}\n\n{about}\n\n| option | default | |\n|---|---|---|"
        yield "\n".join(rows) + "\n"
    for kind, below in nested:
        if not (section is sft.SftConfig and kind in (training_sections.ModelConfig, schema.PluginsConfig)):
            yield from _section(kind, below)


def _section_in(hint: Any) -> type | None:
    """The section that an option holds, alone, by name or as an option."""
    for kind in (hint, *get_args(hint)):
        if inspect.isclass(kind) and attrs.has(kind) and kind is not Component:
            return kind
    return None


def _rows(section: type) -> Iterator[tuple[str, str]]:
    """Yield each option of a section with its cells."""
    told, hints = docstrings(section), get_type_hints(section)
    for field in attrs.fields(section):
        if _section_in(hints[field.name]) is None:
            yield field.name, f"{_default(field)} | {_cell(hints[field.name], told[field.name])}"


def _default(field: attrs.Attribute[Any]) -> str:
    value = field.default
    if value is attrs.NOTHING:
        return "required"
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        value = value.factory()
    if isinstance(value, Component):
        value = value.use
    elif attrs.has(type(value)):  # a section, which has a table of its own
        return ""
    if isinstance(value, tuple):
        value = [item.use if isinstance(item, Component) else item for item in value]
    text = write_yaml({"x": dict(value) if isinstance(value, Mapping) else value}).strip()
    text = re.sub(r"^x:\s*", "", text)
    if text.startswith("- "):
        text = f"[{', '.join(line.removeprefix('- ') for line in text.splitlines())}]"
    return f"`{text}`" if text not in ("null", "''", '""') else "-"


def _cell(hint: Any, text: str) -> str:
    values = [value for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for value in get_args(kind)]
    choice = f"One of {', '.join(f'`{value}`' for value in values)}. " if values else ""
    return (choice + text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
