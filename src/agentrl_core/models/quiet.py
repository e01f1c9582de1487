"""Keeps transformers' progress bars off a terminal that belongs to the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Load and save without transformers' progress bars, and leave its setting as it was."""
    import transformers

    logging: Any = transformers.utils.logging  # not typed
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
