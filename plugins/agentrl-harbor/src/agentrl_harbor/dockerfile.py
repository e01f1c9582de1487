"""Reader of the Dockerfiles that need no container: a base image, a working directory, variables and copied files."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from pathlib import Path
from typing import Final

import attrs

_IGNORED: Final = frozenset({"LABEL", "MAINTAINER", "EXPOSE", "CMD", "STOPSIGNAL", "SHELL"})
"""Instructions without effect on files; the container's command is replaced anyway."""


@attrs.define
class Steps:
    """Instructions of a Dockerfile, resolved to files, folders and variables."""

    base: str = ""
    """Image of the first FROM; a further FROM is refused."""
    workdir: str = "/"
    env: dict[str, str] = attrs.field(factory=dict)
    copies: list[tuple[Path, str]] = attrs.field(factory=list)
    """File or folder of the build context, and its absolute place."""
    folders: list[str] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)
    """Instructions that would need a container, such as RUN."""


def read_dockerfile(path: Path) -> Steps:
    """Return the steps of a Dockerfile; COPY sources must lie in its folder."""
    steps = Steps()
    for line in _lines(path.read_text(encoding="utf-8")):
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name == "WORKDIR":
            steps.workdir = posixpath.normpath(posixpath.join(steps.workdir, rest.strip("\"'")))
            steps.folders.append(steps.workdir)
        elif name == "ENV":
            steps.env.update(_variables(rest))
        elif name == "COPY" and (copies := _copies(path.parent, rest, steps.workdir)):
            steps.copies += copies
        elif name == "FROM" and not steps.base:
            steps.base = rest
        elif name not in _IGNORED:
            steps.refused.append(line)
    return steps


def _lines(text: str) -> list[str]:
    """Return the instructions, with continued lines joined and comments left out."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(kept))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _variables(rest: str) -> dict[str, str]:
    parts = shlex.split(rest)
    if parts and "=" not in parts[0]:  # the older form, ENV NAME some value
        return {parts[0]: " ".join(parts[1:])}
    return dict(part.split("=", 1) for part in parts if "=" in part)


def _copies(context: Path, rest: str, workdir: str) -> list[tuple[Path, str]]:
    """Return sources and absolute targets of a COPY; empty if it has options, patterns or sources elsewhere."""
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return []
    if len(words) < 2 or any(word.startswith("--") or any(mark in word for mark in "*?[$") for word in words):  # noqa: PLR2004
        return []
    *sources, target = words
    into = target.endswith("/") or len(sources) > 1 or target == "."
    place = posixpath.join(workdir, target)
    found = []
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if not path.exists() or not path.is_relative_to(context.resolve()):
            return []
        found.append((path, posixpath.normpath(posixpath.join(place, path.name) if into and path.is_file() else place)))
    return found
