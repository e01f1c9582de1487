"""Sample tracker with options."""

from pathlib import Path

import attrs


@attrs.define(kw_only=True)
class Tally:
    """Counts steps."""

    run_dir: Path
    path: Path = Path("tally.txt")
    start: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
