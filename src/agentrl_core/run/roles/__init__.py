"""The parts of a run as processes of their own: `agentrl serve`, `agentrl sample` and `agentrl train`.

`train` creates the run or resumes it, and writes each policy version into the place for weights. `serve` loads the
versions and answers LLM calls. `sample` claims groups from the store and runs their episodes on the servers. They meet
in the store and in the place for weights alone, so each of them may start, end or crash at any time.
"""
