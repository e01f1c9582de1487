"""File generators: plugin packages for `agentrl plugins new`, and training folders for `agentrl init`."""
