"""The HTTP server that agents call as if it were OpenAI or Anthropic; it records every call as an interaction.

The path of a call to the policy, one module per step:

1. `serving.connection`, `serving.server`: read the HTTP request from the socket, or `serving.transport` takes it in
   process. Both pass an `HttpRequest` to `serving.routes`.
2. `serving.routes`: find the dialect (`dialects`) by the URL, and the session (`sessions`) by its token or key.
3. `answering`: wait until the call may begin (`admission`); read the body with the dialect, which gives a `ChatRequest`
   (`call_types`); attach a retry to its earlier attempt (`retries`); choose the policy or an upstream
   (`upstream_calls`, `upstreams`).
   With a context policy, `compaction` shortens the history first.
4. `policy_calls`: build the prompt's token ids from the session's history (`history`), settle the sampling parameters
   (`sampling_parameters`).
5. `sampling`: run the engine; `recording`: store the interactions.
6. `answering`: encode the reply, whole or as a stream, with the same dialect.

`online` serves agents outside of the run, which open, end and reward their sessions over HTTP; `members` serves the
episodes of the run's sampling members in other processes.
"""

from agentrl_core.gateway.gateway import Gateway
from agentrl_core.gateway.sessions import Session

__all__ = ["Gateway", "Session"]
