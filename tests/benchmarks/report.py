"""Report of a benchmark: prints its table and stores it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

FOLDER = Path("build/benchmarks")


@attrs.frozen(kw_only=True)
class Row:
    """One case against one peer, or alone."""

    case: str
    model: str = ""
    """Size of the model, where a case is measured with several."""
    metric: str
    ours: float
    peer: float | None = None
    """None where there is no peer, or it does not have this at all."""
    peer_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's; None without a peer. Whether more or less is better depends on the metric."""
        return self.ours / self.peer if self.peer else None


def report(name: str, rows: list[Row], *, better: str = "more is better", notes: Sequence[str] = ()) -> None:
    """Print `rows` and write build/benchmarks/NAME.json."""
    table = Table(title=f"{name} ({better})", caption="\n".join(notes), caption_justify="left")
    for column in ("case", "model", "metric", "ours", "peer", "", "ratio"):
        table.add_column(
            column, justify="left" if column in ("case", "model", "metric", "") else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(
            row.case,
            row.model,
            row.metric,
            f"{row.ours:.4g}",
            "" if row.peer is None else f"{row.peer:.4g}",
            row.peer_name,
            "" if row.ratio is None else f"{row.ratio:.2f}",
        )
    Console(width=120).print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {"rows": [attrs.asdict(row) | {"ratio": row.ratio} for row in rows]}
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
