"""The HTTP server that agents call as if it were OpenAI or Anthropic; it records every call as an interaction.

The path of a call to the policy, one module per step:

1. `serving.connection`, `serving.server`: read the HTTP request from the socket, or `serving.transport` takes it in
   process. Both pass an `HttpRequest` to `Gateway.handle` (`gateway`).
2. `serving.routes`: find the session (`sessions`) and, by the URL, the dialect.
3. `answering`: read the body with the dialect (`dialects`), which gives a `ChatRequest` (`call_types`); attach a retry
   to its earlier attempt (`retries`); choose the policy or an upstream (`forwarding`, `upstreams`).
4. `service`: build the prompt's token ids from the session's history (`history`), settle the sampling parameters
   (`sampling_parameters`), run the engine, store the interactions (`generations`).
5. `answering`: encode the reply, whole or as a stream, with the same dialect.

`online` serves agents outside of the run, which open, end and reward their sessions over HTTP.
"""

from agentrl_core.gateway.gateway import Gateway
from agentrl_core.gateway.sessions import Session

__all__ = ["Gateway", "Session"]
