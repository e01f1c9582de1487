"""HTTP clients for model servers and for agents: pooling, proxies, TLS and retries."""
