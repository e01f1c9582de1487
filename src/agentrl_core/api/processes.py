"""Re-exports for packages: processes and threads for functions that may hang or crash."""

from agentrl_core.concurrency.processes import CallTimeoutError, WorkerDiedError, run_in_process
from agentrl_core.concurrency.threads import call_on_thread

__all__ = ["CallTimeoutError", "WorkerDiedError", "call_on_thread", "run_in_process"]
