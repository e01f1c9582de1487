"""Search and browse: ranking, snippets, pages, parts, and corpora with mistakes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_tool_servers.corpus import Corpus, Document, snippet, split_parts
from agentrl_tool_servers.search import server

DOCUMENTS = [
    Document(id="cat", title="Cats", text="A cat sleeps.\n\nCats eat mice and fish."),
    Document(id="dog", title="Dogs", text="A dog barks at the cat."),
    Document(id="sea", title="The sea", text="Fish live in the sea."),
]


@pytest.fixture(scope="module")
def corpus():
    return Corpus(DOCUMENTS)


def found(corpus, query):
    hits, total = corpus.search(query, first=0, count=10, snippet_chars=100)
    assert len(hits) == total
    return [hit.document.id for hit in hits]


def test_documents_with_the_rarer_words_come_first(corpus):
    assert found(corpus, "dog cat")[0] == "dog"
    assert found(corpus, "FISH, sea!")[0] == "sea"
    assert found(corpus, "zebra") == []
    assert found(corpus, "") == []
    assert found(corpus, "zebra dogs") == ["dog"]


def test_results_come_in_pages_and_documents_in_parts(connect, corpus):
    async def scenario():
        async with connect(server(corpus, results=1, part_chars=20)) as call:
            first, _ = await call("search", query="fish")
            second, _ = await call("search", query="fish", page=2)
            assert first.startswith("The sea [sea]: Fish live in the sea.\n(page 1 of 2)")
            assert second.startswith("Cats [cat]: ")
            assert (await call("search", query="fish", page=3))[0] == "no more results; there are 2 pages"
            assert (await call("search", query="zebra"))[0] == "no results"
            assert await call("browse", id="cat") == ("Cats (part 1 of 3)\nA cat sleeps.", False)
            assert await call("browse", id="cat", part=2) == ("Cats (part 2 of 3)\nCats eat mice and", False)
            assert (await call("browse", id="cat", part=4))[1]
            text, is_error = await call("browse", id="zebra")
            assert is_error
            assert "there is no document 'zebra'" in text
            assert (await call("search", query="x" * 2000))[1]
            for tool in (await call.client.list_tools()).tools:
                assert tool.annotations.read_only_hint

    asyncio.run(scenario())


def test_a_snippet_shows_the_words_of_the_query():
    text = "start " * 50 + "the lamp of Tolen is green " + "end " * 50
    shown = snippet(text, ["tolen", "lamp"], 60)
    assert "lamp of Tolen" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert snippet("short", ["x"], 60) == "short"


@given(st.text(max_size=300), st.lists(st.sampled_from(["a", "b", "word"]), max_size=3), st.integers(1, 80))
def test_snippets_are_parts_of_the_text(text, words, size):
    shown = snippet(text, words, size).removeprefix("… ").removesuffix(" …")
    assert shown in " ".join(text.split())
    assert len(shown) <= max(size, 1)


@given(st.text(" ab\n", max_size=300), st.integers(1, 50))
def test_parts_have_all_of_the_text_in_order(text, size):
    parts = split_parts(text, size)
    assert all(len(part) <= size for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found none"),
        ("{}", r"documents.jsonl:1: expected texts"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', r":2: id 'a' occurred before"),
        ('{"id": "a", "text": 3}', "expected texts"),
        ("[1]", "expected an object"),
        ("no json", r":1: "),
        ('{"id": "a", "text": "..."}', "no document with a word"),
    ],
)
def test_mistakes_in_a_corpus_are_named(tmp_path, text, reason):
    path = tmp_path / "documents.jsonl"
    path.write_text(text.replace("...", "").replace('"id": "a", "text": ""', '"id": "!", "title": "?", "text": "-"'))
    with pytest.raises(ValueError, match=reason):
        server(str(path))


def test_a_corpus_is_read_from_a_file(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"url": "https://a", "title": "A", "text": "apple"}\n\n{"id": "b", "text": "berry"}\n')
    corpus = Corpus.read(path)
    assert found(corpus, "berry") == ["b"]
    assert corpus.get("https://a").title == "A"
    assert corpus.get("b").title == "b"
    assert corpus.get("c") is None
