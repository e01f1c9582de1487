"""The server `sql`: rows as text, and statements that are refused or ended."""

import asyncio
import sqlite3
import time

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from agentrl_tool_servers.sql import QueryLimits, run_query, server

LIMITS = QueryLimits(timeout_s=0.5, rows=3)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        connection.executemany(
            "INSERT INTO item VALUES (?, ?, ?)", [(1, "cup", 2.5), (2, "pot", None), (3, "pan", 7), (4, "a\nb", 1)]
        )
    connection.close()
    return path


def query(path, sql, *, writable=False, limits=LIMITS):
    return run_query(path, sql, writable=writable, limits=limits)


def test_rows_are_shown_as_lines(database):
    assert query(database, "SELECT id, name, price FROM item WHERE id < 3") == (
        "id | name | price\n1 | cup | 2.5\n2 | pot | NULL"
    )
    assert query(database, "SELECT name FROM item WHERE id = 9") == "name\n[no rows]"
    assert query(database, "SELECT name FROM item WHERE id = 4") == "name\na\\nb"
    assert query(database, "SELECT id FROM item").endswith(
        "[more than 3 rows; narrow the query or use LIMIT and OFFSET]"
    )
    assert "<5 bytes>" in query(database, "SELECT zeroblob(5)")
    assert "(2,000 characters)" in query(database, "SELECT printf('%.2000c', 'x')")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM item",
        "INSERT INTO item VALUES (9, 'x', 1)",
        "DROP TABLE item",
        "CREATE TABLE other (x)",
        "CREATE TEMP TABLE other (x)",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA database_list",
        "ATTACH '/tmp/other.sqlite' AS other",
        "VACUUM",
        "VACUUM INTO '{folder}/copy.sqlite'",
        "SELECT load_extension('x')",
        "SELECT writefile('{folder}/x', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT 1; DELETE FROM item",
        "SELEC 1",
        "",
        "SELECT \0",
        "SELECT '\ud800'",
        "SELECT * FROM nothing",
        "SELECT zeroblob(1000000000)",
        "SELECT " + "+".join(["1"] * 5000),
        "SELECT '" + "x" * 30_000 + "'",
    ],
)
def test_statements_that_change_or_leave_the_database_are_refused(database, sql, tmp_path):
    before = database.read_bytes()
    if not sql:
        assert query(database, sql) == "done"
        return
    with pytest.raises(ToolError, match=r"\w"):
        query(database, sql.replace("{folder}", str(tmp_path)))
    assert database.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["shop.sqlite"]


@pytest.mark.parametrize("sql", ["VACUUM INTO '{folder}/copy.sqlite'", "ATTACH '{folder}/other.sqlite' AS other"])
def test_a_writable_database_does_not_reach_other_files(database, sql, tmp_path):
    with pytest.raises(ToolError):
        query(database, sql.replace("{folder}", str(tmp_path)), writable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.sqlite"]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n WHERE x < 0",
        f"SELECT count(*) FROM {', '.join(f'item {name}' for name in 'abcdefghijklmn')}",
    ],
)
def test_a_query_that_takes_too_long_is_ended(database, sql):
    begin = time.monotonic()
    with pytest.raises(ToolError, match=r"longer than 0\.5 s"):
        query(database, sql)
    assert time.monotonic() - begin < 20


def test_a_database_does_not_grow_without_end(database):
    limits = QueryLimits(database_bytes=100_000)
    with pytest.raises(ToolError, match="full"):
        query(
            database,
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000) "
            "INSERT INTO item SELECT 10 + x, zeroblob(5000), 1 FROM n",
            writable=True,
            limits=limits,
        )
    assert query(database, "SELECT count(*) AS n FROM item") == "n\n4"


def test_each_episode_changes_its_own_copy(connect, database):
    before = database.read_bytes()

    async def scenario():
        async with connect(server(str(database), "episode")) as call:
            assert await call("query", episode="a", sql="DELETE FROM item") == ("done, 4 rows changed", False)
            assert await call("query", episode="a", sql="SELECT count(*) AS n FROM item") == ("n\n0", False)
            assert await call("query", episode="b", sql="SELECT count(*) AS n FROM item") == ("n\n4", False)
            assert "CREATE TABLE item" in (await call("schema", episode="a"))[0]

    asyncio.run(scenario())
    assert database.read_bytes() == before


def test_only_a_read_only_database_may_be_asked_again(connect, database):
    async def hints(mode):
        async with connect(server(str(database), mode)) as call:
            return {tool.name: tool.annotations.idempotent_hint for tool in (await call.client.list_tools()).tools}

    assert asyncio.run(hints("read_only")) == {"query": True, "schema": True}
    assert asyncio.run(hints("shared")) == {"query": False, "schema": True}


def test_what_is_no_database_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database, but a text that is long enough to be read as one" * 20)
    for name in ("text", "missing"):
        with pytest.raises(ValueError, match="expected a SQLite database"):
            server(str(tmp_path / name))
