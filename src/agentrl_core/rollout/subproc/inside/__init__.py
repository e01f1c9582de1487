"""Code of the agent's process that also runs where agentrl is not installed, under any Python from 3.8 on.

Another interpreter loads this folder by its path, as a package of another name (`start.py`). So the modules here import
the standard library alone, as little of it as they can, and each other by relative imports. What the run needs of the
same rules, such as which functions are workflows, it imports from here.
"""
