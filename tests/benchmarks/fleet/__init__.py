"""Parts of the benchmark of model servers: the server processes, the load, and the cost in front of one server."""
