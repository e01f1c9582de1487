"""Disable transformers' progress bars, because the terminal shows the run's own output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars inside of the block, and restore the setting afterwards."""
    import transformers

    logging: Any = transformers.utils.logging  # not typed
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
