"""Pytest plugin for tables that tests fill row by row; printed at the end, also with several test processes."""

import pytest
from tests.matrix.table import CELL, add_cell, print_cells

ROW = "row of a table"


@pytest.fixture
def tell_row(request):
    """Put a row into a table that is printed at the end: `tell_row("faults", "agent raises", "failed(ValueError)")`."""

    def tell(title, *cells):
        request.node.user_properties.append((ROW, [title, *map(str, cells)]))

    return tell


class Tables:
    """Collects rows and cells from the tests' reports."""

    def __init__(self):
        self.rows = {}
        self.cells = {}

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties:
            if name == ROW and report.when == "call":
                self.rows.setdefault(value[0], []).append(value[1:])
            elif name == CELL:
                add_cell(self.cells, *value)

    def pytest_terminal_summary(self, terminalreporter):
        if self.cells:
            print_cells(terminalreporter, self.cells)
        for title, rows in self.rows.items():
            terminalreporter.section(title)
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
                terminalreporter.write_line("  ".join(cells).rstrip())


def pytest_configure(config):
    config.pluginmanager.register(Tables())
