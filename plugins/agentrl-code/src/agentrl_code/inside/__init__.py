"""Code that runs in the sandbox processes, next to programs that nobody trusts.

These modules import only the standard library and each other, because the sandbox processes have none of the
trainer's packages. A program can read every object of its own process, so nothing here may hold a secret or an
expected result.
"""
