"""The option names of AReaL and AgentRL mean what their native spelling means."""

import pytest

from agentrl_core.config import load, parse
from agentrl_core.config.aliases import AGGREGATION_FLAGS, RENAMED
from agentrl_core.errors import ConfigError

PAIRS = [
    ("rollout.openai.mode=subproc", "rollout.agent.mode=subproc"),
    ("rollout.openai.turn_discount=0.9", "rollout.agent.turn_discount=0.9"),
    ("rollout.openai.export_style=concat", "rollout.agent.export_style=concat"),
    ("rollout.openai.subproc_max_workers=2", "rollout.agent.subproc_max_workers=2"),
    ("scheduler.type=local", "launcher.use=local"),
    ("scheduler.type=lab/own", "launcher.use=lab/own"),
    ("gconfig.n_samples=4", "rollout.group_size=4"),
    ("gconfig.max_new_tokens=64", "sampling.max_tokens=64"),
    ("gconfig.min_new_tokens=4", "sampling.min_tokens=4"),
    ("gconfig.temperature=0.8", "sampling.temperature=0.8"),
    ("gconfig.top_p=0.9", "sampling.top_p=0.9"),
    ("gconfig.top_k=20", "sampling.top_k=20"),
    ("gconfig.top_k=-1", "sampling.top_k=0"),
    ("gconfig.stop=[END, STOP]", "sampling.stop=[END, STOP]"),
    ("gconfig.stop_token_ids=[5, 7]", "sampling.stop_token_ids=[5, 7]"),
    ("gconfig.ignore_eos=true", "sampling.ignore_eos=true"),
    ("gconfig.max_tokens=512", "engine.context_length=512"),
    ("eval_gconfig.temperature=0.6", "eval.temperature=0.6"),
    ("eval_gconfig.top_p=0.8", "eval.top_p=0.8"),
    ("eval_gconfig.top_k=30", "eval.top_k=30"),
    ("eval_gconfig.greedy=true", "eval.temperature=0"),
    ("workflow_kwargs.bonus=2", "workflow.bonus=2"),
    ("actor.eps_clip=0.3", "loss.clip=0.3"),
    ("actor.c_clip=3.0", "loss.dual_clip=3.0"),
    ("actor.sapo_tau_pos=1.5", "loss.tau_positive=1.5"),
    ("actor.sapo_tau_neg=2.5", "loss.tau_negative=2.5"),
    ("actor.prox_logp_method=loglinear", "loss.proximal=loglinear"),
    ("num_generations=4", "rollout.group_size=4"),
    ("model_name_or_path=/models/qwen", "model.path=/models/qwen"),
    ("learning_rate=2e-6", "trainer.lr=2e-6"),
    ("save_steps=3", "trainer.save_steps=3"),
    ("max_steps=30", "trainer.steps=30"),
    ("warmup_steps=10", "trainer.warmup_steps=10"),
    ("max_new_tokens=128", "sampling.max_tokens=128"),
    ("train_file=tasks.jsonl", "data.train=tasks.jsonl"),
    ("adv_scaling=2.0", "advantage.scale=2.0"),
    ("epsilon=0.1", "loss.clip=0.1"),
    ("epsilon_higher=0.05", "loss.clip_higher=0.05"),
    ("strict_in_bound=true", "loss.strict_in_bound=true"),
    ("importance_weight_cap_ratio=3.0", "loss.importance_weight_cap_ratio=3.0"),
    ("out_of_date_decay=0.5", "loss.out_of_date_decay=0.5"),
    ("loss_calculater=MINIRL", "loss.use=minirl"),
    ("loss_calculater=GRPO", "loss.use=grpo"),
    ("loss_calculater=Grpo", "loss=grpo"),
    ("loss_calculater=GSPO", "loss.use=gspo"),
    ("loss_calculater=CrossEntropy", "loss.use=cross_entropy"),
    ("loss_calculater=lab/own", "loss.use=lab/own"),
    ("token_level_loss=true", "loss.aggregation=token_mean"),
    ("token_level_loss=false", "loss.aggregation=seq_mean_token_mean"),
    ("skip_length_normalization=true", "loss.aggregation=token_mean"),
    ("db_connection_string=sqlite:///runs/a.db", "store={use: sqlite, path: runs/a.db}"),
    ("db_connection_string=sqlite:////var/a.db", "store={use: sqlite, path: /var/a.db}"),
    ("db_connection_string=mongodb://u:p@h:1/run", "store={use: mongo, url: 'mongodb://u:p@h:1/run'}"),
    ("db_connection_string=mongodb+srv://h/run", "store={use: mongo, url: mongodb+srv://h/run}"),
    ("output_dir=output", "output_dir=output"),
]


@pytest.mark.parametrize(("alias", "native"), PAIRS)
def test_an_alias_on_the_command_line_equals_the_native_spelling(run_config, alias, native):
    assert run_config("", alias) == run_config("", native)
    assert run_config("", f"--{alias}") == run_config("", native)


@pytest.mark.parametrize(("alias", "native"), PAIRS)
def test_an_alias_in_the_file_equals_the_native_spelling(run_config, alias, native):
    key, _, value = alias.partition("=")
    *sections, last = key.split(".")
    text = f"{last}: {value}"
    for section in reversed(sections):
        text = f"{section}: {{{text}}}"
    assert run_config(f"{text}\n") == run_config("", native)


def test_every_alias_is_compared_with_its_native_spelling():
    tried = {alias.partition("=")[0] for alias, _ in PAIRS}
    assert set(AGGREGATION_FLAGS) | {"loss_calculater", "db_connection_string"} <= tried
    for path in RENAMED:
        assert any(name == ".".join(path) or name.startswith(f"{'.'.join(path)}.") for name in tried)


@pytest.mark.parametrize(
    ("token_level", "skip", "aggregation"),
    [
        ("true", "true", "token_mean"),
        ("true", "false", "token_mean"),
        ("false", "true", "seq_mean_token_sum"),
        ("false", "false", "seq_mean_token_mean"),
    ],
)
def test_agentrls_two_flags_are_one_aggregation_wherever_each_is_set(run_config, token_level, skip, aggregation):
    flags = [f"token_level_loss={token_level}", f"skip_length_normalization={skip}"]
    lines = [flag.replace("=", ": ") for flag in flags]
    expected = run_config("", f"loss.aggregation={aggregation}")
    assert run_config("\n".join(lines) + "\n") == expected
    assert run_config("", *flags) == expected
    assert run_config(f"{lines[0]}\n", flags[1]) == expected
    assert run_config(f"{lines[1]}\n", flags[0]) == expected


def test_the_recommended_settings_of_agentrl_load_as_they_are(run_config):
    run = run_config(
        "", "--loss_calculater=MINIRL", "--token_level_loss=false", "--strict_in_bound=true",
        "--skip_length_normalization=true", "--num_generations=8", "--adv_scaling=2.0",
    )  # fmt: skip
    assert run.loss.use == "minirl"
    assert run.loss.options == {"strict_in_bound": True, "aggregation": "seq_mean_token_sum"}
    assert (run.rollout.group_size, run.advantage.options) == (8, {"scale": 2.0})


def test_the_later_source_wins_in_either_spelling(run_config):
    assert run_config("save_steps: 5", "trainer.save_steps=7").trainer.save_steps == 7
    assert run_config("trainer: {save_steps: 5}", "save_steps=7").trainer.save_steps == 7
    assert run_config("token_level_loss: true", "loss.aggregation=constant").loss.options["aggregation"] == "constant"
    flags = run_config("loss: {aggregation: constant}", "token_level_loss=true")
    assert flags.loss.options["aggregation"] == "token_mean"


def test_an_alias_and_its_native_spelling_may_agree(run_config):
    run = run_config("num_generations: 4\nrollout: {group_size: 4}\ngconfig: {n_samples: 4}\n")
    assert run.rollout.group_size == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "num_generations: 4\nrollout:\n  group_size: 8\n",
            (
                "config.yaml:3: rollout.group_size sets rollout.group_size to 8, "
                "but num_generations (config.yaml:1) sets it to 4; keep one of them"
            ),
        ),
        (
            "loss: minirl\nloss_calculater: GRPO\n",
            (
                'config.yaml:2: loss_calculater sets loss.use to the text "grpo", '
                'but loss.use (config.yaml:1) sets it to the text "minirl"; keep one of them'
            ),
        ),
        (
            "token_level_loss: true\nloss: {aggregation: constant}\n",
            (
                'config.yaml:1: token_level_loss sets loss.aggregation to the text "token_mean", '
                'but loss.aggregation (config.yaml:2) sets it to the text "constant"; keep one of them'
            ),
        ),
        (
            "store: {url: 'mongodb://u:first@h/a', use: mongo}\ndb_connection_string: mongodb://u:second@h/b\n",
            (
                'config.yaml:2: db_connection_string sets store.url to the text "mongodb://***@h/b", '
                'but store.url (config.yaml:1) sets it to the text "mongodb://***@h/a"; keep one of them'
            ),
        ),
        (
            "token_level_loss: 'true'\n",
            'config.yaml:1: token_level_loss: expected true or false, found the text "true"',
        ),
        (
            "db_connection_string: postgres://u:secret@h/a\n",
            "config.yaml:1: db_connection_string: expected sqlite:///FILE or mongodb://HOST/DATABASE",
        ),
        (
            "num_generations: many\n",
            'config.yaml:1: rollout.group_size: expected a whole number, found the text "many"',
        ),
    ],
)
def test_contradictions_and_wrong_values_name_their_places(write, text, problem):
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert str(caught.value) == problem


def test_two_spellings_on_the_command_line_must_agree(write):
    with pytest.raises(ConfigError, match=r"command line: trainer\.lr=2: trainer\.lr sets trainer\.lr to 2, but "):
        load(write(), ["learning_rate=1", "trainer.lr=2"])


def test_python_data_may_use_aliases_too():
    given = {"data": "a", "workflow": "x", "rollout": {"openai": {"mode": "online"}}, "num_generations": 2}
    run = parse(given)
    assert (run.rollout.agent.mode, run.rollout.group_size) == ("online", 2)


@pytest.mark.parametrize(
    ("written", "ours"), [("MINIRL", "minirl"), ("GRPO", "grpo"), ("CrossEntropy", "cross_entropy")]
)
def test_losses_in_agentrls_spelling(run_config, written, ours):
    assert run_config("", f"loss={written}").loss.use == ours
    assert run_config(f"loss: {{use: {written}}}").loss.use == ours
