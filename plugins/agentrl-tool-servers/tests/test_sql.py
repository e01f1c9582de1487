"""The server `sql`: rows as text, statements that are refused or ended, and episodes that hold up no other."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from agentrl_tool_servers.query import QueryLimits, RefusedError, run_query
from agentrl_tool_servers.sql import server

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
    with pytest.raises(RefusedError, match=r"\w"):
        query(database, sql.replace("{folder}", str(tmp_path)))
    assert database.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["shop.sqlite"]


@pytest.mark.parametrize("sql", ["VACUUM INTO '{folder}/copy.sqlite'", "ATTACH '{folder}/other.sqlite' AS other"])
def test_a_writable_database_does_not_reach_other_files(database, sql, tmp_path):
    with pytest.raises(RefusedError):
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
    with pytest.raises(RefusedError, match=r"longer than 0\.5 s"):
        query(database, sql)
    assert time.monotonic() - begin < 20


def test_a_database_does_not_grow_without_end(database):
    limits = QueryLimits(database_bytes=100_000)
    with pytest.raises(RefusedError, match="full"):
        query(
            database,
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000) "
            "INSERT INTO item SELECT 10 + x, zeroblob(5000), 1 FROM n",
            writable=True,
            limits=limits,
        )
    assert query(database, "SELECT count(*) AS n FROM item") == "n\n4"


def numbers(most):
    return f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {most})"


def columns(number, value):
    return ", ".join([value] * number)


CELL = "printf('%.500c', 'x')"
ONE_LONG_STEP = (
    f"{numbers(101)}, v(a, b) AS (SELECT printf('%.499999c', 'a'), printf('%.250000c', 'a') || 'b') "
    "SELECT sum(instr(a || '', b || i)) FROM v, n"
)
"""About 10 minutes of instructions of seconds each, between which SQLite looks at no clock."""
TOO_LONG, TOO_LARGE = "took longer than 0.3 s", "needs more memory than 64 MB"
CUT = "[cut after 2,000 characters; ask for fewer rows or columns, or use substr()]"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (ONE_LONG_STEP, TOO_LONG),
        ("SELECT length(replace(printf('%.999999c', 'a'), printf('%.400000c', 'a') || 'b', 'c'))", TOO_LONG),
        (f"{numbers(-1)} SELECT count(*) FROM n", TOO_LONG),
        (f"SELECT printf('%.900000c', 'a') LIKE '{'%a' * 60}%b'", "too complex"),
        (f"{numbers(-1)} SELECT hex(zeroblob(100000)) || i AS s FROM n ORDER BY s", TOO_LARGE),
        (f"{numbers(101)} SELECT {columns(200, 'hex(zeroblob(490000)) || i')} FROM n", TOO_LARGE),
        (f"{numbers(101)} SELECT {columns(450, CELL)} FROM n", CUT),
        (f"{numbers(101)} SELECT printf('%.30000c', i) FROM n", CUT),
        (f"SELECT 1 AS '{'x' * 15_000}'", "(15,000 characters)"),
        (f"SELECT {columns(1900, '1')}", "too many columns"),
        ("SELECT hex(zeroblob(900000))", "too big"),
        (f"{numbers(-1)} SELECT group_concat(i) FROM n", TOO_LONG),
    ],
)
def test_attacks_on_time_memory_and_size_are_ended(connect, database, sql, said):
    limits = QueryLimits(timeout_s=0.3 if said is TOO_LONG else 30, chars=2_000, memory_mb=64)

    async def scenario():
        async with asyncio.timeout(60), connect(server(str(database), limits=limits)) as call:
            text, _ = await call("query", episode="a", sql=sql)
            assert said in text
            assert len(text) < 2_200
            assert (await call("query", episode="a", sql="SELECT 1 AS n")) == ("n\n1", False)

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["read_only", "episode", "shared"])
def test_an_episode_does_not_hold_up_the_others(connect, database, mode):
    limits = QueryLimits(timeout_s=600)

    async def scenario():
        async with asyncio.timeout(60), connect(server(str(database), mode, limits=limits)) as call:
            endless = [asyncio.create_task(call("query", episode="a", sql=ONE_LONG_STEP)) for _ in range(50)]
            for _ in range(3):
                assert (await call("query", episode="b", sql="SELECT 1 AS n")) == ("n\n1", False)
            assert not any(task.done() for task in endless)
            for task in endless:
                task.cancel()
            await asyncio.wait(endless)

    asyncio.run(scenario())


def test_a_query_that_is_killed_while_it_writes_changes_nothing(connect, database):
    found = "instr(printf('%.499999c', 'a'), printf('%.250000c', 'a') || i)"
    slow = f"{numbers(50)} INSERT INTO item SELECT 10 + i, {found}, 1 FROM n"

    async def scenario():
        limits = QueryLimits(timeout_s=0.3)
        async with asyncio.timeout(60), connect(server(str(database), "shared", limits=limits)) as call:
            assert "took longer" in (await call("query", sql=slow))[0]
            assert await call("query", sql="SELECT count(*) AS n FROM item") == ("n\n4", False)
            assert "CREATE TABLE item" in (await call("schema"))[0]

    asyncio.run(scenario())


def test_a_large_schema_is_cut(connect, database):
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("BEGIN")
        for number in range(100):
            connection.execute(f"CREATE TABLE t{number} ({', '.join(f'column{i} TEXT' for i in range(40))})")
        connection.commit()

    async def scenario():
        async with connect(server(str(database), limits=QueryLimits(chars=2_000))) as call:
            text, _ = await call("schema")
            assert text.endswith(CUT)
            assert len(text) < 2_200

    asyncio.run(scenario())


def test_a_signal_ends_a_server_in_the_middle_of_a_query(connect_http, key, database):
    arguments = [str(database), "--http", "0", "--timeout-s", "600"]
    command = [sys.executable, "-m", "agentrl_tool_servers.sql", *arguments]
    environment = os.environ | {"TOOL_SERVER_KEY": key}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stderr.readline().split()[-1]

            async def scenario():
                async with asyncio.timeout(60), connect_http(url) as client:
                    meta = {"agentrl/episode": "a"}
                    endless = asyncio.create_task(client.call_tool("query", {"sql": ONE_LONG_STEP}, meta=meta))
                    await client.call_tool("query", {"sql": "SELECT 1"}, meta={"agentrl/episode": "b"})
                    process.send_signal(signal.SIGTERM)
                    begin = time.monotonic()
                    await asyncio.to_thread(process.wait, 30)
                    endless.cancel()
                    return time.monotonic() - begin

            assert asyncio.run(scenario()) < 10
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()


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
