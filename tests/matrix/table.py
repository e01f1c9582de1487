"""Table of all matrix cells, printed at the end and written to build/matrix.json."""

import json
from pathlib import Path

REPORT = Path(__file__).parent.parent.parent / "build" / "matrix.json"
CELL = "cell of the matrix"
"""Name of the property by which a report tells of its cell: client, case and what was found."""


def add_cell(cells, client, case, found):
    """Put what one test found into the cells, by client and case."""
    cell = cells.setdefault((client, case), {"doors": {}})
    if "impossible" in found:
        cell["impossible"] = found["impossible"]
    else:
        cell["doors"][found["door"]] = {name: value for name, value in found.items() if name != "door"}


def print_cells(terminalreporter, cells):
    """Print a row for each client, and write the report."""
    clients, cases = list(dict.fromkeys(key[0] for key in cells)), list(dict.fromkeys(key[1] for key in cells))
    width = max(map(len, clients))
    terminalreporter.section("clients of the gateway: share of the trained tokens that the sampler produced")
    terminalreporter.write_line(" ".join([" " * width, *(f"{case:>14}" for case in cases)]))
    for name in clients:
        row = [_shown(cells.get((name, case))) for case in cases]
        terminalreporter.write_line(" ".join([f"{name:<{width}}", *(f"{text:>14}" for text in row)]))
    notes = dict.fromkeys(
        f"{key[0]}: {reason}"
        for key, cell in cells.items()
        for reason in [cell.get("impossible"), *(door.get("forks") for door in cell["doors"].values())]
        if reason
    )
    for note in notes:
        terminalreporter.write_line(f"  {note}")
    terminalreporter.write_line(
        "  - cannot be done with that client; * more than one sequence; 2x by socket and in process"
    )
    REPORT.parent.mkdir(exist_ok=True)
    table = [{"client": key[0], "case": key[1], **cell} for key, cell in cells.items()]
    REPORT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _shown(cell):
    if cell is None:
        return ""
    if "impossible" in cell:
        return "-"
    doors = cell["doors"].values()
    if not all(door["ok"] for door in doors):
        return "FAIL"
    share = min(door.get("exactness", 0.0) for door in doors)
    mark = "*" if any(door.get("forks") for door in doors) else ""
    return f"ok {share:.2f}{mark}" + (f" {len(doors)}x" if len(doors) > 1 else "")
