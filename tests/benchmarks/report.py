"""Print a benchmark's table and keep it as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

FOLDER = Path("build/benchmarks")


@attrs.frozen(kw_only=True)
class Row:
    """One case against one peer; more is better."""

    case: str
    model: str = ""
    """Size of the model, where a case is measured with several."""
    metric: str
    ours: float
    peer: float
    peer_name: str

    @property
    def ratio(self) -> float:
        return self.ours / self.peer


def report(name: str, rows: list[Row]) -> None:
    """Print `rows` and write build/benchmarks/NAME.json."""
    table = Table(title=name)
    for column in ("case", "model", "metric", "ours", "peer", "", "ratio"):
        table.add_column(column, justify="left" if column in ("case", "model", "metric", "") else "right")
    for row in rows:
        table.add_row(
            row.case, row.model, row.metric, f"{row.ours:.4g}", f"{row.peer:.4g}", row.peer_name, f"{row.ratio:.2f}"
        )
    Console().print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {"rows": [attrs.asdict(row) | {"ratio": row.ratio} for row in rows]}
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
