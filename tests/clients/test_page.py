"""The documentation lists the clients, versions and scenarios that `nox -s clients` plays."""

from pathlib import Path

from .catalogue import CLIENTS, table

PAGE = Path(__file__).parents[2] / "cookbook" / "gateway.md"


def test_the_pages_table_is_that_of_the_session():
    assert table() in PAGE.read_text(encoding="utf-8"), f"put this table into {PAGE.name}:\n{table()}"


def test_every_package_is_pinned():
    assert all("==" in name or "@" in name[1:] for client in CLIENTS for name in client.packages)
