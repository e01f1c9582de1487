"""The config of the README is valid, and it names the command that installs the weights."""

import re
from pathlib import Path

from agentrl_core.config import load
from agentrl_smollm2.builder import INSTALL

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_config_is_read(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
    assert load(tmp_path / "config.yaml").run.model.use == "smollm2-135m"


def test_the_weights_are_installed_by_the_same_command():
    assert INSTALL in README
