"""The README, and the recipe in cookbook/verifiers as far as it runs without the environment that it trains."""

import re
import subprocess
import sys
from pathlib import Path

import attrs

from agentrl_core.config import load
from agentrl_core.run.checks import check_config
from agentrl_verifiers.dataset import VerifiersTasks

ROOT = Path(__file__).parents[3]
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
RECIPE = ROOT / "cookbook" / "verifiers"


def problems(path):
    return [item for item in check_config(load(path))[0] if not re.search(r"model\.path|there is no interpreter", item)]


def test_the_config_of_the_readme_is_valid_but_for_its_model(tmp_path):
    (block,) = re.findall(r"```yaml\n(# config.*?)```", README, re.DOTALL)
    (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
    assert problems(tmp_path / "config.yaml") == []


def test_every_option_is_told_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", README, re.MULTILINE))
    fields = {item.name: item.default for item in attrs.fields(VerifiersTasks) if item.name != "config_dir"}
    told = {attrs.NOTHING: "required", None: "-"}
    assert rows == {
        name: "`{}`" if name == "args" else told.get(default, str(default)) for name, default in fields.items()
    }


def test_the_config_of_the_recipe_is_valid():
    assert problems(RECIPE / "config.yaml") == []


def test_the_recipes_words_are_what_its_script_writes(tmp_path):
    (tmp_path / "words").mkdir()
    script = tmp_path / "make_data.py"
    script.write_bytes((RECIPE / "make_data.py").read_bytes())
    subprocess.run([sys.executable, str(script)], check=True)
    for name in ("demos.jsonl", "words/train.jsonl", "words/test.jsonl"):
        assert (tmp_path / name).read_bytes() == (RECIPE / name).read_bytes()
    train, test = ((tmp_path / f"words/{name}.jsonl").read_text().splitlines() for name in ("train", "test"))
    assert not set(train) & set(test)
