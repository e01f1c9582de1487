"""Sample plugin whose hook has an argument that this agentrl-core does not know."""

from agentrl_core import hookimpl


@hookimpl
def register_scorers(register, context):
    register("contextual", lambda request: context)
