"""AReaL's names outside of runs: what they do, and what a name that is not here says."""

import asyncio
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

import agentrl_areal
from agentrl_areal import hooks, workflow_context
from agentrl_areal.utils import logging as areals_logging
from agentrl_areal.utils import perf_tracer, stats_tracker
from agentrl_areal.utils.hf_utils import apply_chat_template, load_hf_tokenizer
from agentrl_testing import check_plugin
from agentrl_testing.policy import write_tokenizer


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-areal")


def test_it_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'openai', 'math_verify', 'sympy', 'httpx2', 'aiohttp'}"
    code = f"import sys, agentrl_areal, agentrl_areal.hooks; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from agentrl_areal import PPOTrainer", r"areal\.PPOTrainer has no counterpart .* agentrl_core\.Trainer"),
        ("from agentrl_areal.api import TrainEngine", r"areal\.api\.TrainEngine has no counterpart"),
        ("from agentrl_areal.api.cli_args import GRPOConfig", "agentrl config show"),
        ("from agentrl_areal.workflow import VisionRLVRWorkflow", "show no images"),
        ("from agentrl_areal.utils.hf_utils import load_hf_processor_and_tokenizer", "use load_hf_tokenizer"),
        ("from agentrl_areal.utils.logging import setup_file_logging", "writes its log to its run directory"),
        ("from agentrl_areal.experimental.openai import ArealOpenAI", r"openai\.AsyncOpenAI and return"),
        ("from agentrl_areal.api import NoSuchName", "cannot import name 'NoSuchName'"),
    ],
)
def test_a_name_that_is_not_here_says_at_its_import_what_does_the_same(line, told):
    with pytest.raises(ImportError, match=told):
        exec(line)
    assert not hasattr(agentrl_areal, "__wrapped__")


def test_names_are_found_where_areal_has_them():
    from agentrl_areal.api import AsyncRewardWrapper, ModelRequest, RolloutWorkflow
    from agentrl_areal.api.engine_api import InferenceEngine
    from agentrl_areal.api.io_struct import ModelRequest as Request
    from agentrl_areal.api.reward_api import AsyncRewardWrapper as Wrapper
    from agentrl_areal.api.workflow_api import RolloutWorkflow as Workflow
    from agentrl_areal.infra import workflow_context as of_infra
    from agentrl_areal.infra.workflow_context import get
    from agentrl_areal.reward import gsm8k_reward_fn
    from agentrl_areal.reward.gsm8k import gsm8k_reward_fn as reward
    from agentrl_areal.workflow import MultiTurnWorkflow, RLVRWorkflow
    from agentrl_core.api.token_level import TokenEngine

    assert (Request, Wrapper, Workflow, reward) == (ModelRequest, AsyncRewardWrapper, RolloutWorkflow, gsm8k_reward_fn)
    assert (of_infra, get, InferenceEngine) == (workflow_context, workflow_context.get, TokenEngine)
    assert all(issubclass(item, RolloutWorkflow) for item in (MultiTurnWorkflow, RLVRWorkflow))


def test_outside_an_episode_the_context_is_that_of_training_or_what_was_set():
    import contextvars

    assert (workflow_context.get().is_eval, workflow_context.get().task_id) == (False, None)
    assert workflow_context.stat_scope() == "rollout"

    def evaluated():
        workflow_context.set(workflow_context.WorkflowContext(is_eval=True, task_id=3))
        return workflow_context.get().task_id, workflow_context.stat_scope()

    assert contextvars.copy_context().run(evaluated) == (3, "eval-rollout")
    assert workflow_context.stat_scope() == "rollout"
    with pytest.raises(LookupError, match="outside an episode"):
        asyncio.run(workflow_context.get_httpx_client())


def test_phases_let_everything_through():
    @perf_tracer.trace_perf("sync", category=perf_tracer.Category.IO)
    @perf_tracer.session_context()
    @perf_tracer.trace_session("reward")
    def sync(value):
        with perf_tracer.trace_scope("a"), perf_tracer.trace_session_phase("b", start_payload={}):
            perf_tracer.instant("now")
            return value

    @perf_tracer.trace_session("generate")
    async def later(value):
        async with perf_tracer.atrace_scope("a"), perf_tracer.atrace_session_phase("b"):
            return sync(value)

    assert asyncio.run(later(4)) == sync(4) == 4
    assert (perf_tracer.is_configured(), perf_tracer.get_session_tracer()) == (False, None)
    with pytest.raises(ZeroDivisionError), perf_tracer.trace_scope("a"):
        _ = 1 / 0
    for ask in (perf_tracer.configure, perf_tracer.get_tracer):
        with pytest.raises(RuntimeError, match="has no PerfTracer"):
            ask()
    perf_tracer.set_task_id(3)
    assert (perf_tracer.get_task_id(), perf_tracer.get_session_id()) == (3, None)
    perf_tracer.set_task_id(None)


def test_a_logger_is_the_standard_librarys(caplog):
    logger = areals_logging.getLogger("AnAReaLWorkflow", "colored")
    assert logger is logging.getLogger("AnAReaLWorkflow")
    logger.info("told")
    logger.debug("not told")
    assert caplog.messages == ["told"]
    logger.setLevel(logging.ERROR)
    assert areals_logging.getLogger("AnAReaLWorkflow").level == logging.ERROR


def test_a_tokenizer_makes_ids_of_a_conversation_and_has_a_padding_token(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = load_hf_tokenizer(str(tmp_path), padding_side="left")
    assert tokenizer is load_hf_tokenizer(str(tmp_path), padding_side="left")
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token_id is not None
    messages = [{"role": "user", "content": "hi"}]
    text = apply_chat_template(tokenizer, messages, tokenize=False, add_generation_prompt=True)
    ids = apply_chat_template(tokenizer, messages, add_generation_prompt=True)
    assert type(ids) is list
    assert tokenizer.decode(ids) == text
    assert apply_chat_template(SimpleNamespace(apply_chat_template=lambda *_, **__: (1, 2)), messages) == [1, 2]


def test_a_tokenizer_runs_no_code_that_lies_beside_it(tmp_path):
    write_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]},', 1))
    tmp_path.joinpath("evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    load_hf_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_episodes_that_run_at_the_same_time_keep_their_scopes():
    tracker = stats_tracker.DistributedStatsTracker()

    async def episode(name):
        with tracker.scope(name):
            await asyncio.sleep(0)
            tracker.scalar(reward=1)

    async def both():
        await asyncio.gather(episode("a"), episode("b"))

    asyncio.run(both())
    assert tracker.export().keys() == {"a/reward", "a/reward__count", "b/reward", "b/reward__count"}


def test_numbers_of_a_step_are_a_line_in_the_runs_folder(tmp_path):
    run, step = SimpleNamespace(directory=str(tmp_path)), SimpleNamespace(step=1, steps=2)
    stats_tracker.scalar(left=1)
    hooks.run_started()
    hooks.step_finished(run, step)
    assert list(tmp_path.iterdir()) == []
    stats_tracker.get("rollout").scalar(reward=1)
    stats_tracker.get("rollout").scalar(reward=0)
    hooks.step_finished(run, step)
    stats_tracker.get("eval-rollout").scalar(reward=1)
    hooks.run_finished(run, step)
    first, second = (tmp_path / hooks.STATS_FILE).read_text().splitlines()
    assert first == '{"step": 1, "rollout/reward": 0.5, "rollout/reward__count": 2}'
    assert second == '{"step": 2, "eval-rollout/reward": 1.0, "eval-rollout/reward__count": 1}'
