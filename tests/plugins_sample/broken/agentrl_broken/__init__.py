"""Sample plugin package that fails when it is imported."""

import sglang_that_is_not_here  # noqa: F401, I001  # no linter can know whose it is
from agentrl_core import hookimpl


@hookimpl
def register_engines(register):
    register("fleet", "agentrl_broken:Fleet")
