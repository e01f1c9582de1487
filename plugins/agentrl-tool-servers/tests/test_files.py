"""The server `files`: text files of an episode, and paths, links and sizes that are refused."""

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from agentrl_tool_servers.files import server
from agentrl_tool_servers.folder import FileLimits, Folder


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root").mkdir()
    return tmp_path / "secret"


@pytest.fixture
def folder(outside):
    return Folder(outside.parent / "root", FileLimits(file_bytes=1000, total_bytes=2000, files=10))


def test_files_are_written_read_listed_and_removed(folder):
    folder.write("a/b/c.txt", "text")
    folder.write("/a/./d.txt", "more")
    folder.write("a/b/c.txt", "other")
    assert folder.read("a/b/c.txt") == "other"
    assert folder.entries("") == ["a/", "a/b/", "a/b/c.txt", "a/d.txt"]
    assert folder.entries("a/b") == ["c.txt"]
    folder.remove("a/d.txt")
    with pytest.raises(ToolError, match="not empty"):
        folder.remove("a/b")
    with pytest.raises(ToolError, match=r"there is no 'a/d.txt'"):
        folder.read("a/d.txt")


def test_no_name_that_an_episode_makes_keeps_others_from_writing(folder):
    for name in (f".{os.getpid()}.begun", ".begun", "begun"):
        folder.write(f"{name}/x", "")
    folder.write("a.txt", "text")
    assert folder.read("a.txt") == "text"


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "..", "a/..", "/../secret"])
def test_no_path_leaves_the_folder(folder, path):
    for action in (folder.read, folder.entries, folder.remove, lambda path: folder.write(path, "x")):
        with pytest.raises(ToolError, match="leaves the folder"):
            action(path)


def test_no_link_leads_out_of_the_folder(folder, outside):
    (folder.root / "file").symlink_to(outside)
    (folder.root / "folder").symlink_to(outside.parent)
    for path in ("file", "folder/secret", "folder/new"):
        with pytest.raises(ToolError):
            folder.read(path)
        with pytest.raises(ToolError):
            folder.write(path, "changed")
    with pytest.raises(ToolError):
        folder.entries("folder")
    with pytest.raises(ToolError):
        folder.remove("folder/secret")
    assert "folder/" in folder.entries("") or "folder" in folder.entries("")
    assert not any("secret" in name for name in folder.entries(""))
    folder.remove("file")  # the link itself
    assert outside.read_text() == "secret"


@given(st.lists(st.sampled_from(["..", ".", "", "a", "link", "secret", "root", "\0", "\ud800", "a" * 300]), max_size=6))
def test_no_composed_path_reads_or_changes_what_is_outside(tmp_path_factory, parts):
    top = tmp_path_factory.mktemp("top")
    (top / "secret").write_text("secret")
    (top / "root").mkdir()
    (top / "root" / "link").symlink_to(top)
    folder = Folder(top / "root", FileLimits())
    for action in (folder.read, folder.entries, lambda path: folder.write(path, "x"), folder.remove):
        try:
            assert action("/".join(parts)) != "secret"
        except ToolError as error:
            assert len(str(error)) < 1200  # noqa: PT017 - either is fine
    assert (top / "secret").read_text() == "secret"
    assert sorted(path.name for path in top.iterdir()) == ["root", "secret"]


def test_what_is_no_text_file_is_refused_without_waiting(folder):
    os.mkfifo(folder.root / "pipe")
    (folder.root / "binary").write_bytes(b"\xff\xfe")
    (folder.root / "large").write_bytes(b"x" * 1001)
    for path, reason in (("pipe", "not a file"), ("binary", "not a text"), ("large", "larger"), ("", "folder itself")):
        with pytest.raises(ToolError, match=reason):
            folder.read(path)
    with pytest.raises(ToolError, match="not a file"):
        folder.write("pipe", "x")


def test_sizes_are_limited(folder):
    with pytest.raises(ToolError, match="may have 1,000"):
        folder.write("a", "x" * 1001)
    folder.write("a", "x" * 1000)
    folder.write("b", "x" * 900)
    with pytest.raises(ToolError, match="2,000 are allowed"):
        folder.write("c", "x" * 200)
    for number in range(7):
        folder.write(f"small{number}", "")
    with pytest.raises(ToolError, match="10 are allowed"):
        folder.write("d/e", "")
    with pytest.raises(ToolError, match="more than 16 parts"):
        folder.write("d/" * 20 + "e", "")


def test_a_failed_write_leaves_the_old_file(folder):
    folder.write("a", "old")
    with pytest.raises(ToolError):
        folder.write("a", "x" * 1001)
    assert folder.read("a") == "old"
    assert folder.entries("") == ["a"]


def test_each_episode_starts_with_its_own_copy(connect, outside, tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    (start / "notes.txt").write_text("one\ntwo\n")
    (start / "link").symlink_to(outside)

    async def scenario():
        async with connect(server(str(start))) as call:
            assert await call("list_files", episode="a") == ("notes.txt", False)
            assert await call("edit_file", episode="a", path="notes.txt", old="two", new="2") == (
                "edited notes.txt",
                False,
            )
            assert await call("read_file", episode="a", path="notes.txt") == ("one\n2\n", False)
            assert await call("read_file", episode="b", path="notes.txt") == ("one\ntwo\n", False)
            text, is_error = await call("edit_file", episode="b", path="notes.txt", old="o", new="0")
            assert is_error
            assert "occurs 2 times" in text
            assert await call("write_file", episode="b", path="../x", text="x") == (
                "Error executing tool write_file: '../x' leaves the folder; paths are relative to it and have no '..'",
                True,
            )

    asyncio.run(scenario())
    assert (start / "notes.txt").read_text() == "one\ntwo\n"


def test_read_only_offers_no_tool_that_writes(connect, tmp_path):
    (tmp_path / "a").write_text("x")

    async def scenario():
        async with connect(server(str(tmp_path), "read_only")) as call:
            tools = (await call.client.list_tools()).tools
            assert [tool.name for tool in tools] == ["list_files", "read_file"]
            assert all(tool.annotations.read_only_hint for tool in tools)
            assert await call("read_file", path="a") == ("x", False)

    asyncio.run(scenario())


def test_hints_say_what_may_be_repeated(connect):
    async def scenario():
        async with connect(server()) as call:
            hints = {tool.name: tool.annotations for tool in (await call.client.list_tools()).tools}
            repeatable = {name for name, hint in hints.items() if hint.read_only_hint or hint.idempotent_hint}
            assert repeatable == {"list_files", "read_file", "write_file"}

    asyncio.run(scenario())


def test_long_files_are_read_in_parts(connect, tmp_path):
    (tmp_path / "long").write_text("".join(f"{number:09}\n" for number in range(5000)))
    (tmp_path / "wide").write_text("x" * 30_000)

    async def scenario():
        async with connect(server(str(tmp_path), "read_only")) as call:
            text, line, seen = "", 1, []
            while line:
                text, _ = await call("read_file", path="long", first_line=line)
                seen += [row for row in text.splitlines() if row.isdigit()]
                line = int(text.rsplit("first_line=", 1)[1].rstrip("]")) if "first_line=" in text else 0
            assert seen == [f"{number:09}" for number in range(5000)]
            assert "was cut" in (await call("read_file", path="wide"))[0]
            assert "has 5000 lines" in (await call("read_file", path="long", first_line=5001))[0]

    asyncio.run(scenario())


def test_many_writers_of_one_episode_lose_nothing(connect):
    async def scenario():
        async with connect(server()) as call:
            await call("write_file", path="log", text="begin")
            edits = (call("edit_file", path="log", old="begin", new=f"begin {number}") for number in range(20))
            assert not any(is_error for _, is_error in await asyncio.gather(*edits))
            words = (await call("read_file", path="log"))[0].split()
            assert sorted(words[1:], key=int) == [str(number) for number in range(20)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"folder": "/does/not/exist"}, "there is no folder"),
        ({"mode": "shared"}, "needs --folder"),
    ],
)
def test_wrong_options_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        server(**options)


def test_a_folder_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="has 100 bytes"):
        server(str(tmp_path), limits=FileLimits(total_bytes=50))


def test_a_link_put_into_the_path_meanwhile_is_not_followed(folder, outside):
    """One thread replaces a folder by a link to the outside and back, another writes through it."""
    folder = Folder(folder.root, FileLimits())
    (folder.root / "a").mkdir()

    def swap():
        for number in range(200):
            # The other thread may make `a` again in between.
            (folder.root / "a").rename(folder.root / f"b{number}")
            with contextlib.suppress(OSError):
                (folder.root / "a").symlink_to(outside.parent)
                (folder.root / "a").unlink()
            with contextlib.suppress(FileExistsError):
                (folder.root / "a").mkdir()

    def write():
        for number in range(200):
            try:
                folder.write("a/planted", str(number))
            except (ToolError, OSError):
                continue

    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(swap), threads.submit(write)]:
            job.result(timeout=60)
    assert not (outside.parent / "planted").exists()
