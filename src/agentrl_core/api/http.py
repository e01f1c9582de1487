"""Re-exports for packages: HTTP clients with pooled connections, a server's proxy, the TLS context, retries."""

from typing import Any

from agentrl_core.http.backoff import RETRYABLE_STATUSES, Backoff, RetryPolicy, TransientError, retry_after_s
from agentrl_core.http.proxies import FORMS as PROXY_FORMS
from agentrl_core.http.proxies import Proxy, proxy_of
from agentrl_core.http.proxies import is_option as is_proxy_option
from agentrl_core.http.server_client import ExchangeError, Fault, ServerClient, ServerReply, server_sent_events
from agentrl_core.http.shared_client import SharedClient
from agentrl_core.http.tls_context import ssl_context

__all__ = [
    "PROXY_FORMS",
    "RETRYABLE_STATUSES",
    "Backoff",
    "ExchangeError",
    "Fault",
    "Proxy",
    "RetryPolicy",
    "ServerClient",
    "ServerReply",
    "SharedClient",
    "TransientError",
    "is_proxy_option",
    "proxy_of",
    "retry_after_s",
    "server_sent_events",
    "ssl_context",
]


def __getattr__(name: str) -> Any:
    from agentrl_core.moved import renamed

    return renamed(__name__, name)
