"""What the README shows, run."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text]
    assert len(found) == 1, f"the README has {len(found)} {language} blocks with {containing!r}"
    return found[0]


def test_the_config_of_the_first_screen_is_valid(tmp_path):
    from agentrl_core import config

    path = tmp_path / "config.yaml"
    path.write_text(block("yaml", "my_agent.py:MathAgent"), encoding="utf-8")
    run = config.load(path, ["rollout.group_size=16"]).run
    assert (run.workflow.use, run.loss.use, run.rollout.group_size) == ("my_agent.py:MathAgent", "grpo", 16)


def test_the_agent_of_the_first_screen_runs():
    import httpx2

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path.endswith("/chat/completions")
        message = {"role": "assistant", "content": " 42 "}
        return httpx2.Response(200, json={"id": "1", "choices": [{"index": 0, "message": message}]})

    scope: dict = {}
    exec(block("python", "class MathAgent"), scope)  # the README's own text

    async def episode() -> float:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            data = {"messages": [{"role": "user", "content": "6 x 7?"}], "answer": "42"}
            return await scope["MathAgent"]().run(data, base_url="http://x", api_key="k", http_client=client)

    assert asyncio.run(episode()) == 1.0


def test_the_six_line_scorer_package_installs_and_scores(tmp_path):
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    wheel = '[tool.hatch.build.targets.wheel]\ninclude = ["gsm8k_scorer.py"]\n'
    (package / "pyproject.toml").write_text(build + block("toml", "agentrl-gsm8k") + wheel, encoding="utf-8")
    (package / "gsm8k_scorer.py").write_text(block("python", "def score(request"), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, str(package)], check=True)
    program = f"""
import json
import sys
sys.path.insert(0, {str(site)!r})
from agentrl_core import ScoreRequest
from agentrl_core.plugins import load_registry
from agentrl_core.types import Record, Task

registry = load_registry()
score = registry.load("scorers", "gsm8k")
task = Task(id="t1", data={{"messages": []}}, answer="42", scorer="gsm8k")
record = Record(id="r", run_id="x", task_id="t1", group_id="g", sample_index=0)

def ask(answer):
    return score(ScoreRequest(answer=answer, reference="42", task=task, messages=(), record=record))

print(json.dumps([registry.describe("scorers", "gsm8k"), ask("It is $42."), ask("41")]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["agentrl-gsm8k==0.1.0 gsm8k_scorer:score", 1.0, 0.0]


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_file_that_the_readme_links_exists(link):
    assert (ROOT / link).exists()
