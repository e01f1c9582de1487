"""Counterpart of `areal.utils.logging`: `getLogger`, for the standard library's loggers.

The program, not this module, configures handlers and formats.
"""

from __future__ import annotations

import logging
from typing import Any

from agentrl_areal.elsewhere import explain

__all__ = ["getLogger"]


def getLogger(name: str | None = None, type_: str | None = None, level: int = logging.INFO) -> logging.Logger:  # noqa: N802, ARG001 (AReaL's)
    """Return the standard library's logger of that name; its level is set to `level` unless it has one.

    `type_`, a colour in AReaL, has no effect.
    """
    logger = logging.getLogger(name or "plain")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    return logger


_ELSEWHERE = {
    "setup_file_logging": "a run writes its log to its run directory",
    "log_swanlab_wandb_tensorboard": "name trackers in the config: `trackers: [console, jsonl]`",
    "suppress_http_loggers": "use the standard library's logging.getLogger('httpx').setLevel('WARNING')",
}


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
