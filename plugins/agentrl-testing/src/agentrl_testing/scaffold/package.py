"""Generator of `agentrl plugins new`: a package with metadata, components, a README and conformance tests."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from agentrl_core.api.options import did_you_mean
from agentrl_core.errors import PluginError
from agentrl_core.plugins.discovery import GROUP, core_version
from agentrl_testing.scaffold.kinds import HOOK_MODULES, SCAFFOLDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_testing.scaffold.kinds import Scaffold

_PREFIX = "agentrl-"


def write_package(name: str, kinds: Sequence[str], folder: Path) -> list[Path]:
    """Write the package `name` with a component of each of `kinds` into `folder`/`name`; return its files.

    The components are registered under the package's name without `agentrl-`. Raises `PluginError` for an invalid name,
    an unknown kind or an existing folder.
    """
    chosen = list({scaffold.file: scaffold for scaffold in map(_scaffold, kinds)}.values())
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise PluginError(f"NAME: expected lower-case words joined by '-', such as agentrl-lab, found '{name}'")
    root = folder / name
    if root.exists():
        raise PluginError(f"{root} exists already; choose another name, or another --directory")
    parts = [_values(name, scaffold) for scaffold in chosen]
    whole = parts[0] | {
        "summary": "; ".join(scaffold.summary for scaffold in chosen),
        "entry_points": "\n\n".join(_filled("entry_point", values).strip() for values in parts),
        "usages": "\n\n".join(_filled("usage", values).strip() for values in parts),
    }
    texts = {
        "pyproject.toml": _filled("pyproject.toml", whole),
        "README.md": _filled("README.md", whole),
        f"src/{whole['module']}/__init__.py": f'"""{whole["summary"]}."""\n',
        f"src/{whole['module']}/py.typed": "",
    }
    for scaffold, values in zip(chosen, parts, strict=True):
        texts[f"src/{values['module']}/{scaffold.file}.py"] = _filled(f"{scaffold.file}.py", values)
        texts[f"tests/test_{scaffold.file}.py"] = _filled(f"{scaffold.file}_test.py", values)
    written = []
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        written.append(root / path)
    return written


def _scaffold(kind: str) -> Scaffold:
    wanted = kind.replace("_", "-")
    # `--kind` also accepts the registry's kind, such as `scorers` for `scorer`.
    for name, scaffold in SCAFFOLDS.items():
        if wanted in (name, scaffold.kind.replace("_", "-")):
            return scaffold
    raise PluginError(f"--kind: no kind '{kind}'{did_you_mean(kind, SCAFFOLDS)}; kinds are {', '.join(SCAFFOLDS)}")


def _values(name: str, scaffold: Scaffold) -> dict[str, str]:
    component = name.removeprefix(_PREFIX)
    module = name.replace("-", "_")
    class_name = "".join(word.capitalize() for word in component.split("-"))
    # `agentrl-4d` has the component `4d`, which cannot begin a class name.
    class_name = class_name if class_name[0].isalpha() else f"Plugin{class_name}"
    target = f"{module}.{scaffold.file}:{scaffold.attribute or class_name}"
    by_hook = scaffold.file in HOOK_MODULES
    major, minor = core_version().split(".")[:2]
    return {
        "distribution": name,
        "module": module,
        "component": component,
        "class_name": class_name,
        "file": scaffold.file,
        "summary": scaffold.summary,
        "group": GROUP if by_hook else f'"{GROUP}.{scaffold.kind}"',
        "entry": component,
        "target": target.partition(":")[0] if by_hook else target,
        "usage": Template(scaffold.usage).substitute(component=component),
        "language": scaffold.language,
        "core_range": f">={major}.{minor},<{major}.{int(minor) + 1}",
    }


def _filled(name: str, values: dict[str, str]) -> str:
    template = files("agentrl_testing.scaffold").joinpath("templates", f"{name}.txt").read_text(encoding="utf-8")
    return Template(template).substitute(values)
