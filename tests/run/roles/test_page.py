"""The cookbook's page on roles: its commands train a run, and the options that it lists are those that are compared."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl_core import config as configs
from agentrl_core.run.roles import agreement

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "cookbook" / "roles.md").read_text(encoding="utf-8")
SHORT = ("warm_start.steps=40", "trainer.steps=1", "rollout.tasks_per_step=2", "eval.tasks=1", "eval.every=0")


def test_the_page_lists_exactly_the_options_that_are_compared():
    (compared,) = re.findall(r"## What must be the same\n(.*?)\n- All:", PAGE, re.DOTALL)
    for role, part in zip(("serve", "sample"), compared.split("\n- ")[1:], strict=True):
        listed, section = set(), ""
        for before, name in re.findall(r"(\bof )?`([\w.]+)`", part.replace("(without `model.path`)", "")):
            section = name if before else section
            if not before:
                listed.add(f"{section}.{name}" if section and "." not in name else name)
        assert listed == set(agreement._OF_ROLE[role])


def test_every_option_that_the_page_names_exists():
    known = configs.dump(configs.parse({"model": {"path": "m"}}))
    for name in re.findall(r"`((?:\w+\.)+\w+)(?::[^`]*)?`", PAGE):
        value = known
        for part in name.split("."):
            assert part in value, name
            value = value[part]


@pytest.mark.slow
def test_the_commands_of_the_page_train_a_run(warm, tmp_path):
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    serve, sample, train = (
        [str(ROOT / word) if word.startswith("cookbook/") else word for word in shlex.split(line, comments=True)[1:]]
        for line in block.splitlines()
    )
    with (
        warm.program(*serve, *SHORT, cwd=tmp_path) as server,
        warm.program(*sample, *SHORT, cwd=tmp_path) as sampler,
        warm.program(*train, *SHORT, cwd=tmp_path) as trainer,
    ):
        for program in (trainer, sampler, server):
            told, _ = program.communicate()
            # 3, of the trainer: the few episodes may all get the same reward, so that nothing was learned
            assert program.returncode in ({0, 3} if program is trainer else {0}), told
