"""The sample corpus: the same for a seed, with answers that its documents have, and splits without overlap."""

import json

import pytest

from agentrl_core.data.tasks import load_tasks
from agentrl_testing.datasets import DatasetSuite
from agentrl_tool_servers.corpus import Corpus
from agentrl_tool_servers.sample_corpus import main, make_world, tasks


class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self):
        return lambda: tasks(split="test", people=20)


@pytest.fixture(scope="module", params=[(0, 60), (7, 9)])
def world(request):
    seed, people = request.param
    return make_world(seed, people)


def test_each_document_of_a_path_names_the_next_and_the_last_has_the_answer(world):
    documents = {document.id: document for document in world.documents}
    assert len(documents) == len(world.documents)
    for question in world.questions:
        assert documents[question.path[0]].title in question.text
        for here, after in zip(question.path, question.path[1:], strict=False):
            assert documents[after].title in documents[here].text
        assert question.answer in documents[question.path[-1]].text


def test_the_first_document_is_found_by_the_question(world):
    corpus = Corpus(world.documents)
    for question in world.questions:
        hits, _ = corpus.search(question.text, first=0, count=5, snippet_chars=100)
        assert question.path[0] in [hit.document.id for hit in hits]


def test_questions_have_one_to_three_hops_in_both_splits(world):
    for split in ("train", "test"):
        assert {item.hops for item in world.questions if item.split == split} == {1, 2, 3}
    starts = {split: {item.path[0] for item in world.questions if item.split == split} for split in ("train", "test")}
    assert not starts["train"] & starts["test"]
    assert len({item.id for item in world.questions}) == len(world.questions)


def test_the_seed_decides():
    assert make_world(3) == make_world(3)
    assert {document.title for document in make_world(3).documents}.isdisjoint({"Anna"})
    assert make_world(3) != make_world(4)
    with pytest.raises(ValueError, match="at least 4"):
        make_world(0, 2)


def test_the_data_set_and_the_files_have_the_same_questions(tmp_path):
    main([str(tmp_path), "--seed", "5", "--people", "20"])
    for split in ("train", "test"):
        read, made = load_tasks(tmp_path / f"{split}.jsonl"), tasks(split=split, seed=5, people=20)
        assert [(item.id, item.data, item.answer) for item in read] == [
            (item.id, item.data, item.answer) for item in made
        ]
    documents = [json.loads(line) for line in (tmp_path / "documents.jsonl").read_text().splitlines()]
    assert len(documents) == len(Corpus.read(tmp_path / "documents.jsonl").documents)
    assert len(tasks(people=20, hops=[2], limit=3)) == 3
