"""Script that prints the tasks of an environment: `python listing.py OPTIONS OUTPUT`, in verifiers' interpreter."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path


def main(options: str, output: str) -> None:
    """Write the tasks' data to the file `output`, one JSON line each; `options` are JSON.

    What environments print must not get among them, hence a file.
    """
    wanted = json.loads(options)
    sys.path[:0] = wanted["folders"]
    _import_package()
    environment = importlib.import_module("agentrl_verifiers.environment")
    env = environment.build(wanted["env"], wanted["args"])
    rows = environment.rows(env, first=wanted["first"], size=wanted["size"])
    with Path(output).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _import_package() -> None:
    """Import the package from this file's folder, and nothing else from the folder around it."""
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "agentrl_verifiers", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None  # noqa: S101  (a .py file always has one)
    assert spec.loader is not None  # noqa: S101
    package = sys.modules["agentrl_verifiers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001  (whatever an environment raises is told in one line)
        told = re.sub(r"\s*For further information visit \S+", "", str(error))
        sys.exit(f"{type(error).__name__}: {' '.join(told.split())}")
