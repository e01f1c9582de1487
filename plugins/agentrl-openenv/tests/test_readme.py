"""The examples of the README work."""

import json
import re
from pathlib import Path

import pytest

from agentrl_core.config import load
from agentrl_core.run.checks import check_config

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
AGENT = "class Agent:\n    async def run(self, data):\n        return None\n"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split(":")[0].strip("# "))
def test_a_config_is_valid_but_for_its_model(tmp_path, block):
    (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
    (tmp_path / "my_agent.py").write_text(AGENT, encoding="utf-8")
    row = {"responses_create_params": {"input": "Hello?"}}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert [item for item in check_config(load(tmp_path / "config.yaml"))[0] if "model.path" not in item] == []
