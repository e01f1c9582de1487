"""A sample corpus about invented islands, with questions that need one to three of its documents.

All names are made up from syllables, so that no model knows the answers: they have to be found. The same seed and
size always make the same corpus and questions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs

from agentrl_core import Task
from agentrl_tool_servers.corpus import Document

_STARTS: Final = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kr", "tr")
_VOWELS: Final = ("a", "e", "i", "o", "u")
_ENDS: Final = ("", "l", "n", "r", "s")
_JOBS: Final = (
    "baker",
    "carpenter",
    "doctor",
    "fisher",
    "gardener",
    "painter",
    "sailor",
    "teacher",
    "weaver",
    "writer",
)
_GOODS: Final = ("boats", "bread", "candles", "cheese", "clocks", "glass", "lamps", "paper", "ropes", "soap")
_PEOPLE_PER_TOWN: Final = 4
_TOWNS_PER_ISLAND: Final = 3
_TEST_SHARE: Final = 0.25


@attrs.frozen(kw_only=True)
class Question:
    """A question with its answer."""

    id: str
    text: str
    answer: str
    path: tuple[str, ...]
    """Ids of the documents to read, in this order: each one names the next, and the last one has the answer."""
    split: Literal["train", "test"]

    @property
    def hops(self) -> int:
        """Number of documents that have to be read."""
        return len(self.path)


@attrs.frozen(kw_only=True)
class World:
    """The documents, and all questions about them."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


@attrs.frozen(kw_only=True)
class _Person:
    name: str
    town: str
    job: str
    born: int


@attrs.frozen(kw_only=True)
class _Town:
    name: str
    island: str
    mayor: str


@attrs.frozen(kw_only=True)
class _Company:
    name: str
    founder: str
    goods: str
    founded: int


def make_world(seed: int = 0, people: int = 60) -> World:
    """Return a world with this many people, and in proportion companies, towns and islands.

    The questions of the split `test` begin at people, towns and companies at which no question of `train` begins.
    """
    if people < _PEOPLE_PER_TOWN:
        raise ValueError(f"people: expected at least {_PEOPLE_PER_TOWN}, found {people}")
    rng = random.Random(f"islands {seed}")  # noqa: S311 - a corpus, not a secret
    names = _names(rng)
    persons = [next(names) for _ in range(people)]
    town_names = [next(names) for _ in range(people // _PEOPLE_PER_TOWN)]
    islands = [next(names) for _ in range(-(-len(town_names) // _TOWNS_PER_ISLAND))]
    known = {
        name: _Person(
            name=name,
            town=town_names[number % len(town_names)],
            job=rng.choice(_JOBS),
            born=rng.randint(1900, 1999),
        )
        for number, name in enumerate(persons)
    }
    towns = {
        name: _Town(name=name, island=islands[number % len(islands)], mayor=rng.choice(persons))
        for number, name in enumerate(town_names)
    }
    companies = [
        _Company(name=next(names), founder=founder, goods=rng.choice(_GOODS), founded=rng.randint(1920, 2019))
        for founder in rng.sample(persons, people // 2)
    ]
    documents = [*_documents(known, towns, companies, islands)]
    rng.shuffle(documents)
    tested = {
        name for names in (persons, town_names, [item.name for item in companies]) for name in _tested(rng, names)
    }
    questions = [
        Question(
            id=f"{seed}-{len(path)}-{kind}-{path[0]}",
            text=text,
            answer=answer,
            path=path,
            split="test" if path[0].capitalize() in tested else "train",
        )
        for kind, text, answer, path in _questions(known, towns, companies)
    ]
    rng.shuffle(questions)
    return World(documents=tuple(documents), questions=tuple(questions))


def tasks(
    *,
    split: Literal["train", "test"] = "train",
    seed: int = 0,
    people: int = 60,
    hops: tuple[int, ...] = (1, 2, 3),
    limit: int | None = None,
) -> list[Task]:
    """Return the questions of a split as tasks with `query` and `answer`: the data set `invented_islands`."""
    chosen = [item for item in make_world(seed, people).questions if item.split == split and item.hops in hops]
    return [
        Task(
            id=item.id,
            data={**_row(item), "messages": [{"role": "user", "content": item.text}]},
            answer=item.answer,
        )
        for item in chosen[:limit]
    ]


def write(folder: str | Path, *, seed: int = 0, people: int = 60) -> None:
    """Write `documents.jsonl`, `train.jsonl` and `test.jsonl` into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world(seed, people)
    rows = {"documents": [attrs.asdict(document) for document in world.documents]}
    for split in ("train", "test"):
        rows[split] = [_row(item) for item in world.questions if item.split == split]
    for name, items in rows.items():
        text = "".join(f"{json.dumps(item)}\n" for item in items)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _row(item: Question) -> dict[str, object]:
    return {"id": item.id, "query": item.text, "answer": item.answer, "hops": item.hops, "path": list(item.path)}


def _names(rng: random.Random) -> Iterator[str]:
    """Yield names of two or three syllables, each once."""
    used: set[str] = set()
    while True:
        syllables = [rng.choice(_STARTS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3)))]
        name = ("".join(syllables) + rng.choice(_ENDS)).capitalize()
        if name not in used:
            used.add(name)
            yield name


def _tested(rng: random.Random, names: Sequence[str]) -> list[str]:
    return rng.sample(names, max(1, round(len(names) * _TEST_SHARE)))


def _documents(
    people: dict[str, _Person], towns: dict[str, _Town], companies: Sequence[_Company], islands: Sequence[str]
) -> Iterator[Document]:
    for person in people.values():
        yield _document(
            person.name, f"{person.name} is a {person.job}. {person.name} was born in {person.born}.",
            f"{person.name} lives in the town of {person.town}.",
        )  # fmt: skip
    for town in towns.values():
        yield _document(
            town.name, f"{town.name} is a town on the island of {town.island}.", f"Its mayor is {town.mayor}."
        )
    for company in companies:
        yield _document(
            company.name, f"{company.name} is a company that makes {company.goods}.",
            f"It was founded in {company.founded} by {company.founder}.",
        )  # fmt: skip
    for island in islands:
        own = " and ".join(town.name for town in towns.values() if town.island == island)
        yield _document(island, f"{island} is an island.", f"Its towns are {own}.")


def _document(name: str, *paragraphs: str) -> Document:
    return Document(id=name.lower(), title=name, text="\n\n".join(paragraphs))


def _questions(
    people: dict[str, _Person], towns: dict[str, _Town], companies: Sequence[_Company]
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield kind, text, answer, and the ids of the documents to read."""
    for person in people.values():
        one, two = person.name.lower(), person.town.lower()
        town = towns[person.town]
        yield "job", f"What is the job of {person.name}?", person.job, (one,)
        yield "town", f"In which town does {person.name} live?", person.town, (one,)
        yield "island", f"On which island does {person.name} live?", town.island, (one, two)
        yield "mayor", f"Who is the mayor of the town where {person.name} lives?", town.mayor, (one, two)
    for town in towns.values():
        one, two = town.name.lower(), town.mayor.lower()
        mayor = people[town.mayor]
        yield "island", f"On which island is the town of {town.name}?", town.island, (one,)
        yield "job", f"What is the job of the mayor of {town.name}?", mayor.job, (one, two)
        yield "home", f"In which town does the mayor of {town.name} live?", mayor.town, (one, two)
    for company in companies:
        founder = people[company.founder]
        path = company.name.lower(), founder.name.lower(), founder.town.lower()
        town = towns[founder.town]
        yield "founder", f"Who founded {company.name}?", founder.name, path[:1]
        yield "job", f"What is the job of the founder of {company.name}?", founder.job, path[:2]
        yield "town", f"In which town does the founder of {company.name} live?", founder.town, path[:2]
        yield "island", f"On which island does the founder of {company.name} live?", town.island, path
        yield "mayor", f"Who is the mayor of the town where the founder of {company.name} lives?", town.mayor, path


def main(arguments: list[str] | None = None) -> None:
    """Write the corpus and its questions into a folder."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m agentrl_tool_servers.sample_corpus",
        description="Write a corpus about invented islands: documents.jsonl, train.jsonl and test.jsonl.",
    )
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--people", type=int, default=60)
    options = parser.parse_args(arguments)
    write(options.folder, seed=options.seed, people=options.people)


if __name__ == "__main__":
    main()
