"""State of a remote engine that its calls share: whether it is paused or has ended, and the policy versions."""

from __future__ import annotations

import threading

from agentrl_core.errors import EngineError

STARTED_LABEL = "default"
"""Name that servers give to the weights that they were started with."""
MOST_TOKEN_IDS = 2**31
"""Upper bound of token ids where the policy's configuration states none; a server refuses larger ones."""
_MOST_VERSION_DIGITS = 18
"""Longest label that is read as a policy version; all such numbers fit 64 bits."""


class EngineState:
    """Read by calls on several event loops; `lock` guards changes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self.paused = False
        self.vocab_size = MOST_TOKEN_IDS
        """Number of token ids that the policy can sample."""
        self.ended: str | None = "the engine has not been started"
        """Reason why the engine serves nothing; None while it does."""
        self._labels: dict[str, int] = {}
        """The servers' names for weights → policy versions."""

    def check_alive(self) -> None:
        """Raise `EngineError` if the engine has not been started, or was closed."""
        if self.ended is not None:
            raise EngineError(self.ended)

    def check_newer(self, version: int) -> None:
        """Raise `EngineError` unless `version` exceeds the current one; call it while holding the lock."""
        if version <= self.version:
            raise EngineError(
                f"weights of version {version} offered, but the engine has version {self.version}: versions must rise"
            )

    def name(self, label: str | None, version: int) -> None:
        """Record a server's name for the weights of `version`; nothing if it has none."""
        if label is not None:
            with self.lock:
                self._labels[label] = version

    def version_of(self, label: str, where: str) -> int:
        """Return the policy version of weights by the server's name; `where` begins the message of an error.

        -1 stands for weights that a server was started with and that are not the policy's.
        """
        known = self._labels.get(label)
        if known is not None:
            return known
        if label == STARTED_LABEL:
            return -1
        if (later := self.later_version(label)) is not None:
            return later
        raise EngineError(
            f"{where}: sampled from weights that the server calls {label!r}, which this run did not load; let no other "
            "run load weights into this server"
        )

    def later_version(self, label: str) -> int | None:
        """Return the version of weights newer than all others, which another process of this run has loaded."""
        with self.lock:
            if label.isdecimal() and len(label) <= _MOST_VERSION_DIGITS and int(label) > self.version:
                self._labels[label] = self.version = int(label)
                return self.version
        return None


def label_of(version: int) -> str:
    """Return the name that servers are given for the weights of a policy version."""
    return str(version)
