"""AReaL's `gconfig` and `eval_gconfig`: what has no counterpart is accepted where it asks for nothing, else refused."""

import pytest

from agentrl_core.config import load
from agentrl_core.errors import ConfigError

AREALS_DEFAULTS = """gconfig:
  n_samples: 4
  max_new_tokens: 512
  min_new_tokens: 0
  greedy: false
  temperature: 1.0
  top_p: 1.0
  top_k: 100000000
  stop: null
  stop_token_ids: []
  ignore_eos: false
  skip_special_tokens: true
  frequency_penalty: 0.0
  lora_name: lora-gsm8k
  use_beam_search: false
eval_gconfig: {n_samples: 1, greedy: false, temperature: 0.6, top_p: 1.0, top_k: -1}
"""


def test_the_defaults_of_areal_change_nothing_but_what_they_name(run_config):
    native = run_config("", "rollout.group_size=4", "sampling.max_tokens=512", "eval.temperature=0.6")
    assert run_config(AREALS_DEFAULTS) == native


@pytest.mark.parametrize(
    ("section", "line", "told"),
    [
        ("gconfig", "greedy: true", "greedy sampling never explores, expected false"),
        ("gconfig", "greedy: 1", "expected false"),
        ("gconfig", "frequency_penalty: 0.1", "change the distribution that is trained, expected 0"),
        ("gconfig", "use_beam_search: true", "replies are sampled"),
        ("gconfig", "skip_special_tokens: some", "expected true or false"),
        ("gconfig", "lora_name: 3", "expected any text"),
        ("gconfig", "max_new_token: 3", "unknown option"),
        ("eval_gconfig", "max_new_tokens: 9", "evaluations differ from training only in temperature, top_p and top_k"),
        ("eval_gconfig", "n_samples: 8", "samples each task once, expected 1"),
        ("eval_gconfig", "greedy: 1", "expected true or false"),
    ],
)
def test_what_cannot_be_done_is_an_error_with_its_line(tmp_path, section, line, told):
    path = tmp_path / "config.yaml"
    path.write_text(f"data: {{train: tasks.jsonl}}\n{section}:\n  {line}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f"config.yaml:3: {section}.{line.partition(':')[0]}: " in str(caught.value)
    assert told in str(caught.value)


def test_top_p_and_top_k_have_counterparts(run_config):
    native = run_config("", "sampling.top_p=0.9", "sampling.top_k=50", "eval.top_p=0.95")
    assert run_config("gconfig: {top_p: 0.9, top_k: 50}\neval_gconfig: {top_p: 0.95}\n") == native


@pytest.mark.parametrize("nothing", ["", " {}", " null"])
def test_an_empty_section_changes_nothing(run_config, nothing):
    assert run_config(f"gconfig:{nothing}\neval_gconfig:{nothing}\n") == run_config("")


def test_a_contradiction_with_the_native_name_is_told(run_config):
    with pytest.raises(ConfigError, match=r"sampling\.max_tokens to 9, but gconfig\.max_new_tokens .* sets it to 8"):
        run_config("gconfig: {max_new_tokens: 8}\nsampling: {max_tokens: 9}\n")
