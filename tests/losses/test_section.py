import attrs
import pytest
from tests.losses.test_values import THETA, batch_of

from agentrl_core.api.losses import LossOutput
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.losses import AggregationConfig, Corrected, LossSection, corrected
from agentrl_core.losses.entropy_bonus import EntropyBonus
from agentrl_core.losses.gspo import GSPO
from agentrl_core.losses.importance import MaskedIS, TruncatedIS
from agentrl_core.losses.kl import KL
from agentrl_core.losses.lag_decay import LagDecay
from agentrl_core.losses.minirl import MiniRLPaper
from agentrl_core.losses.ppo import PPO
from agentrl_core.losses.reinforce import Reinforce


def test_the_options_are_parted():
    section = LossSection.read(
        {
            "clip": 0.3,
            "aggregation": "constant",
            "horizon": 64,
            "unit": "interaction",
            "corrections": ["kl", {"use": "truncated_is", "cap": 3.0}],
            "proximal": "loglinear",
            "reference": {"path": "models/base"},
        }
    )
    assert section == LossSection(
        options={"clip": 0.3},
        aggregation=AggregationConfig(aggregation="constant", horizon=64, unit="interaction"),
        corrections=(Component("kl"), Component("truncated_is", {"cap": 3.0})),
        proximal="loglinear",
        reference="models/base",
    )
    assert LossSection.read({"reference": "models/base"}).reference == "models/base"
    assert LossSection.read({}) == LossSection()
    assert LossSection().aggregation.aggregation == "token_mean"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, AggregationConfig(aggregation="constant", horizon=8)),
        ({"horizon": 9}, AggregationConfig(aggregation="constant", horizon=9)),
        ({"unit": "interaction"}, AggregationConfig(aggregation="constant", horizon=8, unit="interaction")),
        ({"aggregation": "token_mean"}, AggregationConfig()),
    ],
)
def test_the_calculators_defaults_give_way_to_the_config(options, expected):
    assert LossSection.read(options, {"aggregation": "constant", "horizon": 8}).aggregation == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregation": "tokenmean"}, "tokenmean"),
        ({"unit": "episode"}, "episode"),
        ({"aggregation": "constant"}, "horizon"),
        ({"horizon": 5}, "horizon"),
        ({"aggregation": "constant", "horizon": 0}, "horizon"),
        ({"corrections": [{"cap": 2}]}, "corrections.0.use: missing: the name of the component"),
        ({"corrections": [3]}, "found 3"),
        ({"corrections": "kl"}, "corrections: expected a list"),
        ({"corrections": {"use": "kl"}}, "corrections: expected a list"),
        ({"proximal": "linear"}, "proximal"),
        ({"reference": 3}, "reference"),
        ({"reference": {"use": "tiny"}}, r"expected {path: FOLDER}"),
    ],
)
def test_a_section_that_cannot_work_is_refused(options, said):
    with pytest.raises(ConfigError, match=f"^loss.*{said}"):
        LossSection.read(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregation": "mean"}, r"^loss\.aggregation: expected token_mean or .*, found the text \"mean\"$"),
        ({"aggregation": "constant", "horizon": "x"}, r"^loss\.horizon: expected a whole number, found the te"),
        ({"aggregation": "constant", "horizon": 2.5}, r"^loss\.horizon: expected a whole number, found 2\.5$"),
        ({"aggregation": "constant", "horizon": -3}, r"^loss\.horizon: .*must be > 0: -3$"),
        ({"horizon": 5}, r"^loss\.horizon: .*belongs to aggregation 'constant'.*; found 5 with .*'token_mean'$"),
        ({"reference": 3}, r"^loss\.reference: expected a text, found 3; put it in quotes: '3'$"),
        ({"reference": {"path": 3}}, r"^loss\.reference: expected a text, found 3; put it in quotes: '3'$"),
        ({"corrections": [3]}, r"^loss\.corrections\.0: expected a name or a section {use: NAME, …}, found 3$"),
    ],
)
def test_what_is_refused_is_named_with_what_was_expected_there(options, said):
    with pytest.raises(ConfigError, match=said):
        LossSection.read(options)


def test_corrections_wrap_the_calculator_in_their_order():
    reinforce = Reinforce()
    assert corrected(reinforce, []) is reinforce
    whole = corrected(reinforce, [LagDecay(), KL()])
    assert whole == Corrected(calculator=reinforce, corrections=(LagDecay(), KL()))
    assert whole.needs == {"reference"}


@attrs.frozen
class Changed:
    """A correction of one operation, which tells its name."""

    name: str
    change: object
    needs = frozenset()

    def correct(self, batch, output):
        return LossOutput(per_token=self.change(output.per_token), keep=output.keep, metrics={self.name: (1.0, 1.0)})


def test_corrections_are_applied_from_the_inside_out_and_all_metrics_are_kept():
    batch = batch_of(advantages=2.0)
    whole = corrected(
        Reinforce(), [Changed("plus", lambda terms: terms + 1), Changed("times", lambda terms: terms * 3)]
    )
    output = whole.loss(batch)
    assert output.per_token.item() == pytest.approx((-2.0 * THETA + 1) * 3)
    assert output.metrics.keys() == {*Reinforce().loss(batch).metrics, "plus", "times"}


def test_a_whole_has_the_traits_of_its_parts():
    plain = corrected(Reinforce(), [EntropyBonus()])
    assert (plain.needs, plain.stops_gradient, plain.whole_sequences) == ({"entropy"}, False, False)
    assert corrected(Reinforce(importance_weight=True), [KL()]).stops_gradient
    assert corrected(Reinforce(), [KL(estimator="k1")]).stops_gradient
    assert corrected(GSPO(), [KL()]).whole_sequences
    assert corrected(Reinforce(), [TruncatedIS(level="sequence")]).whole_sequences
    assert corrected(PPO(), [KL()]).needs == {"proximal", "reference"}


@pytest.mark.parametrize(
    ("calculator", "corrections", "named"),
    [
        (PPO(), [TruncatedIS()], "PPO and TruncatedIS"),
        (MiniRLPaper(), [MaskedIS()], "MiniRLPaper and MaskedIS"),
        (Reinforce(), [MaskedIS(), TruncatedIS()], "MaskedIS and TruncatedIS"),
    ],
)
def test_a_weight_that_would_count_twice_is_refused(calculator, corrections, named):
    with pytest.raises(ConfigError, match=rf"loss\.corrections: {named} each multiply"):
        corrected(calculator, corrections)


@pytest.mark.parametrize(
    ("calculator", "correction"),
    [
        (PPO(behaviour_weight=False), TruncatedIS()),
        (PPO(), MaskedIS(weighted=False)),
        (MiniRLPaper(), MaskedIS(weighted=False, level="geometric")),
    ],
)
def test_a_weight_that_counts_once_is_not(calculator, correction):
    made = corrected(calculator, [correction])
    assert (made.calculator, tuple(made.corrections)) == (calculator, (correction,))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MaskedIS(low=2.0, high=1.0), "high must be at least low"),
        (lambda: PPO(behaviour_weight=False, behaviour_weight_cap=5.0), "behaviour_weight_cap bounds a weight"),
        (lambda: PPO(dual_clip=0.9), "dual_clip"),
    ],
)
def test_options_that_contradict_each_other_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
