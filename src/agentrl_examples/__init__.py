"""Parts of the example agents in agentrl's packages for SDKs; imports only the standard library.

A package of its own beside `agentrl_core`, because these agents also run in interpreters without agentrl: the run's
copy of this package goes there with them.
"""
