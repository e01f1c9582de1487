"""Uses a hook argument that this agentrl-core does not have."""

from agentrl_core import hookimpl


@hookimpl
def register_scorers(register, context):
    register("contextual", lambda request: context)
