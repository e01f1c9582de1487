"""Script that a worker's interpreter runs: load this folder as a package, wherever it is, and start the worker.

The package gets a name of its own, because the interpreter may have another version of agentrl, or none.
"""

import importlib
import importlib.util
import os
import sys

PACKAGE = "agentrl_worker"


def main() -> None:
    """Load the package and run its `worker`."""
    folder = os.path.dirname(os.path.abspath(__file__))
    file = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(PACKAGE, file, submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101  (a .py file always has both)
    package = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    importlib.import_module(PACKAGE + ".worker").main()


if __name__ == "__main__":
    main()
