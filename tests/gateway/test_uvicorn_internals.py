"""The names inside uvicorn that the gateway relies on are there, and a release without them is named."""

import ast
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrl_core.errors import RunError
from agentrl_core.gateway.serving import connection, uvicorn_internals
from agentrl_core.gateway.serving.uvicorn_internals import NAMES, READ, check_uvicorn


def test_this_uvicorn_was_read():
    installed = tuple(map(int, version("uvicorn").split(".")[:2]))
    assert installed <= READ, "read gateway/serving/connection.py beside the new uvicorn, then raise READ and the bound"
    (wanted,) = [item for item in requires("agentrl-core") if item.startswith("uvicorn")]
    assert f"<{READ[0]}.{READ[1] + 1}" in wanted


def test_every_name_that_the_connection_uses_is_in_the_list():
    """A name of `self` that our class does not define is uvicorn's."""
    tree = ast.parse(Path(connection.__file__).read_text(encoding="utf-8"))
    (own,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Connection"]
    used = {
        node.attr
        for node in ast.walk(own)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "other")
    }
    stored = {
        node.attr for node in ast.walk(own) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    } - {"keep_alive", "parser", "disconnected", "waiting_for_100_continue"}
    methods = {node.name for node in own.body if isinstance(node, ast.FunctionDef)}
    assert used - stored - methods == {*NAMES[HttpToolsProtocol]} - {"_start_asgi_task"}
    check_uvicorn()


def test_a_uvicorn_without_one_of_them_is_named(monkeypatch):
    monkeypatch.setitem(uvicorn_internals.NAMES, HttpToolsProtocol, ("pipeline", "conveyor"))
    with pytest.raises(RunError, match=r"uvicorn [0-9.]+ has no HttpToolsProtocol.conveyor, .*; install uvicorn 0.54"):
        check_uvicorn()
