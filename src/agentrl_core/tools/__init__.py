"""Tools of episodes: the servers of a run, the checks, limits, retries and middleware of calls, and their records."""
