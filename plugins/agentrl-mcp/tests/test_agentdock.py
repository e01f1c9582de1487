"""The tool server `agentdock` against a stand-in for a node, with the quirks of AgentDock's own."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import DeliveryUnknownError, InvalidResultError, ToolNotSentError, ToolServerError
from agentrl_mcp.agentdock import AgentDockTools

EPISODE = ToolEpisode(record_id="record-1", task_id="t1", data={})
PIXEL = "data:image/png;base64,AA=="
TEXT_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


class Node(ThreadingHTTPServer):
    """A node with three servers; each server has one process for everybody, and errors come with the status 200."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []
        self.count = 0
        self.hang = threading.Event()
        self.tools = {
            "web.search": TEXT_SCHEMA,
            "web.fetch_url": {"type": "object"},
            "python.execute_code": {},
            "file.count": {"type": "object"},
        }
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/mcpapi"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *args):
        pass

    def reply(self, body, status=200):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        functions = [
            {"type": "function", "function": {"name": name, "description": f"Runs {name}.", "parameters": schema}}
            for name, schema in self.server.tools.items()
        ]
        self.reply({"tools": functions})

    def do_POST(self):
        self.server.seen.append((self.path, dict(self.headers)))
        arguments = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match self.path.rpartition("/")[2]:
            case "web.search" if "query" not in arguments:
                self.reply({"status_code": 500, "detail": "Failed validating 'required' in schema", "headers": None})
            case "web.search":
                self.reply({"content": [{"type": "text", "text": f"about {arguments['query']}"}]})
            case "web.fetch_url":
                self.reply(
                    {
                        "json": {"content": {"title": "a page"}},
                        "text": {"content": "a page"},
                        "image": {"content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
                        "empty": {"content": {}},
                        "nothing": {"result": 1},
                        "error": {"status": "error", "content": "no such page"},
                        "garbage": b"<html>",
                    }[arguments["as"]]
                )
            case "python.execute_code":
                self.server.hang.wait(20)
                self.reply({"content": "late"})
            case "file.count":
                self.server.count += 1
                self.reply({"content": self.server.count})
            case "busy":
                self.reply({"detail": "no container"}, 503)
            case "cut_off":
                self.reply({"detail": "bad gateway"}, 502)
            case _:
                self.reply({"status_code": 404, "detail": "Tool not found", "headers": None})


@pytest.fixture
def node():
    node = Node()
    yield node
    node.hang.set()
    node.shutdown()
    node.server_close()


def run(tools, scenario):
    async def drive():
        await tools.start()
        try:
            return await scenario(await tools.open(EPISODE))
        finally:
            await tools.close()

    return asyncio.run(drive())


def calls(tools, *steps, timeout_s=10.0):
    async def scenario(session):
        return [await session.call(name, arguments, timeout_s=timeout_s) for name, arguments in steps]

    return run(tools, scenario)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["search", "fetch_url", "execute_code", "count"]),
        ({"names": "full"}, ["web.search", "web.fetch_url", "python.execute_code", "file.count"]),
        ({"servers": ["web", "file"]}, ["search", "fetch_url", "count"]),
    ],
)
def test_tools_are_listed_once_for_all_episodes(node, options, names):
    async def scenario(session):
        await session.list_tools()
        return await session.list_tools()

    specs = run(AgentDockTools(url=node.url, **options), scenario)
    assert [spec.name for spec in specs] == names
    assert specs[0].parameters == TEXT_SCHEMA
    assert specs[-1].parameters == {"type": "object", "properties": {}}
    assert [path for path, _ in node.seen] == ["/mcpapi/tools"]


def test_a_tool_is_called_under_its_full_id(node):
    (result,) = calls(AgentDockTools(url=node.url), ("search", {"query": "tides"}))
    assert (result.text, result.is_error) == ("about tides", False)
    path, headers = node.seen[-1]
    assert path == "/mcpapi/tool/web.search"
    assert headers["x-agentrl-episode"] == "record-1"


def test_an_error_with_status_200_is_an_error_of_the_tool(node):
    refused, unknown = calls(AgentDockTools(url=node.url), ("search", {}), ("no_such_tool", {}))
    assert refused.is_error
    assert refused.text == "status 500: Failed validating 'required' in schema"
    assert unknown.is_error
    assert unknown.text == "status 404: Tool not found"


@pytest.mark.parametrize(
    ("form", "text", "structured", "is_error"),
    [
        ("json", '{"title":"a page"}', {"title": "a page"}, False),
        ("text", "a page", None, False),
        ("image", "", None, False),
        ("empty", "the tool returned nothing", None, True),
        ("error", "no such page", None, True),
    ],
)
def test_contents_of_all_forms_become_results(node, form, text, structured, is_error):
    (result,) = calls(AgentDockTools(url=node.url), ("fetch_url", {"as": form}))
    assert (result.text, result.structured, result.is_error) == (text, structured, is_error)
    if form == "image":
        assert result.content[0]["image_url"] == {"url": PIXEL}


@pytest.mark.parametrize("form", ["nothing", "garbage"])
def test_an_answer_that_is_none_is_named(node, form):
    with pytest.raises(InvalidResultError, match=r"no `content`|no JSON object"):
        calls(AgentDockTools(url=node.url), ("fetch_url", {"as": form}))


def test_a_call_that_hangs_ends_at_its_deadline(node):
    with pytest.raises(DeliveryUnknownError, match=r"no answer within 0\.2 s"):
        calls(AgentDockTools(url=node.url), ("execute_code", {}), timeout_s=0.2)


def test_a_node_that_has_no_container_yet_was_not_reached(node):
    with pytest.raises(ToolNotSentError, match="HTTP status 503"):
        calls(AgentDockTools(url=node.url), ("busy", {}))


def test_a_proxy_without_an_answer_does_not_tell_whether_the_tool_ran(node):
    with pytest.raises(DeliveryUnknownError, match="HTTP status 502"):
        calls(AgentDockTools(url=node.url), ("cut_off", {}))


def test_two_servers_with_one_tool_name_need_full_names(node):
    node.tools["files.search"] = TEXT_SCHEMA
    with pytest.raises(ToolServerError, match=r"web\.search, files\.search\): set names: full"):
        run(AgentDockTools(url=node.url), None)
    assert len(run(AgentDockTools(url=node.url, names="full"), lambda session: session.list_tools())) == 5


def test_a_container_for_each_episode_is_named_in_the_url(node):
    url = node.url.replace("/mcpapi", "/container/{episode}/mcpapi")
    tools = AgentDockTools(url=url)
    assert (AgentDockTools(url=node.url).isolation, tools.isolation) == ("shared", "session")
    calls(tools, ("search", {"query": "x"}))
    assert node.seen[-1][0] == "/container/record-1/mcpapi/tool/web.search"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "http://127.0.0.1:9/mcpapi", "start_timeout_s": 0.1}, r"no connection.*\(http://127.0.0.1:9/mcpapi\)"),
        ({"servers": ["shell"]}, "servers: the node has no shell"),
    ],
)
def test_a_node_that_cannot_be_used_is_named_at_the_start(node, options, says):
    with pytest.raises(ToolServerError, match=says) as caught:
        run(AgentDockTools(**{"url": node.url, "name": "dock", **options}), None)
    assert str(caught.value).startswith("dock: ")
