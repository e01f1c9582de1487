"""Writes core's hints for what is not installed from the packages' metadata: `python -m tests.plugins.catalog`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "src" / "agentrl_core" / "plugins" / "catalog.json"


def provided() -> dict[str, dict[str, str]]:
    """Kind -> name -> package, of the tables `[tool.agentrl.provides]` and of commands that are entry points."""
    catalog: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        metadata = tomllib.loads(path.read_text(encoding="utf-8"))
        package = metadata["project"]["name"]
        provides = dict(metadata.get("tool", {}).get("agentrl", {}).get("provides", {}))
        provides["commands"] = list(metadata["project"].get("entry-points", {}).get("agentrl.commands", ()))
        for kind, names in provides.items():
            for name in names:
                assert catalog.setdefault(kind, {}).setdefault(name, package) == package, (
                    f"{kind} '{name}': two packages"
                )
    return {kind: dict(sorted(names.items())) for kind, names in sorted(catalog.items())}


def text() -> str:
    """The whole file."""
    return json.dumps(provided(), indent=2) + "\n"


if __name__ == "__main__":
    CATALOG.write_text(text(), encoding="utf-8")
