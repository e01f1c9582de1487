"""Parts of the gateway's benchmark: measured servers, clients and upstream."""
