"""Hook module of the sample package."""

from agentrl_core import hookimpl

followed: list[str] = []


@hookimpl
def register_scorers(register):
    register("words_f1", "agentrl_good.f1:score", summary="token F1 in [0, 1]")


@hookimpl
def register_trackers(register):
    register("tally", "agentrl_good.tally:Tally", summary="counts steps")


@hookimpl
def run_started(run):
    followed.append(run.name)
