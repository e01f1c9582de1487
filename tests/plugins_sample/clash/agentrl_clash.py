"""Sample plugin that registers a name of another package."""

from agentrl_core import hookimpl


@hookimpl
def register_scorers(register):
    register("gsm8k", score)


@hookimpl
def register_scorer(register):
    register("never", score)


def score(request):
    return 0.5
