"""The README's config is built as a run builds it, and its calls are recorded as it says."""

import asyncio
import re
from pathlib import Path

import yaml

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.config import parse
from agentrl_core.plugins.manager import load_registry
from agentrl_core.tools.toolbox import Toolbox
from agentrl_core.types import ToolOutcome
from agentrl_judge.agent_config import read_agent_config
from agentrl_tool_middleware.browse_settings import read_browse_agent

FOLDER = Path(__file__).parents[1]
BLOCKS = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), re.DOTALL)
TOOLS = """
def execute_code(code: str) -> str:
    "Run code."
    return f"ran {code}" + "." * 40_000

def read_file(path: str) -> str:
    "Read a file."
    return path

def fetch_url(url: list[str]) -> str:
    "Visit addresses."
    return str(url)
"""


def built(folder, text):
    """The toolbox of a config with the README's middleware, but Python functions as tools."""
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
    (folder / "agent_config.yml").write_text(BLOCKS[1], encoding="utf-8")
    config = parse(yaml.safe_load(text)).tools
    registry = load_registry()
    names = ("execute_code", "read_file", "fetch_url")
    functions = parse(
        {"tools": {"servers": [{"use": "functions", "functions": [f"tools.py:{name}" for name in names]}]}}
    )
    servers = [registry.build("tools", entry, config_dir=folder) for entry in functions.tools.servers]
    middleware = [registry.build("tool_middleware", entry, config_dir=folder) for entry in config.middleware]
    return Toolbox(config, servers, middleware)


def test_the_config_works_and_calls_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSE_KEY", "sk-secret")

    async def play():
        toolbox = built(tmp_path, BLOCKS[0])
        rows = []

        async def keep(call):
            rows.append(call)

        await toolbox.start()
        tools = toolbox.open(ToolEpisode(record_id="r", task_id="t", data={}), keep=keep, mark=lambda _: None)
        offered = [spec.name for spec in await tools.specs()]
        await tools.call("PythonInterpreter", {"code": "x"})
        await tools.call("read_file", {"path": "secret"})
        await tools.call("fetch_url", {"url": "https://huggingface.co"})
        await tools.call("fetch_url", {"url": "https://a.org", "goal": "why"})
        await tools.close()
        await toolbox.close()
        return offered, rows

    offered, (code, file, blocked, visited) = asyncio.run(play())
    assert offered == ["PythonInterpreter", "fetch_url"]
    assert (code.name, code.tool, code.outcome) == ("PythonInterpreter", "execute_code", ToolOutcome.OK)
    assert set(code.middleware) == {"rename", "truncate"}
    assert len(code.raw[0]["text"]) > 40_000 > len(code.shown[0]["text"])
    assert (file.outcome, file.attempts, blocked.outcome) == (ToolOutcome.BLOCKED, 0, ToolOutcome.BLOCKED)
    assert (visited.arguments, visited.sent) == ({"url": "https://a.org", "goal": "why"}, {"url": ["https://a.org"]})
    assert "sk-secret" not in repr(code)


def test_the_files_sections_are_read_by_both_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSE_KEY", "sk-secret")
    path = tmp_path / "agent_config.yml"
    path.write_text(BLOCKS[1], encoding="utf-8")
    assert read_agent_config(path).models[0].base_url == read_browse_agent(path).models[0].base_url


def test_the_local_model_is_served_where_the_file_says():
    (service,) = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))["services"].values()
    (local, _) = yaml.safe_load(BLOCKS[1])["browse_agent"]["models"]
    assert service["ports"] == ["127.0.0.1:${PORT:-38889}:38889"]
    assert local["base_url"].endswith(":38889")
    assert f"--served-model-name=${{MODEL_NAME:-{local['model']}}}" in service["command"]
