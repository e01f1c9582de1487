"""A corpus of documents in a JSONL file, with an index that ranks them by BM25."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import bm25s
import numpy as np

_WORD: Final = re.compile(r"\w+")
_PARAGRAPH: Final = re.compile(r"\n\s*\n")


@attrs.frozen(kw_only=True)
class Document:
    """A page of the corpus."""

    id: str
    """Unique name or address, by which it is read."""
    title: str
    text: str


@attrs.frozen(kw_only=True)
class Hit:
    """A document that a search found."""

    document: Document
    snippet: str


class Corpus:
    """Documents, and the index of their titles and texts."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = list(documents)
        self._by_id = {document.id: document for document in self.documents}
        self._index: Any = bm25s.BM25()
        texts = [_words(f"{document.title} {document.text}") for document in self.documents]
        if not any(texts):
            raise ValueError("the corpus has no document with a word in it")
        self._index.index(texts, show_progress=False)

    @classmethod
    def read(cls, path: str | Path) -> Corpus:
        """Read a JSONL file; a line is `{"id": …, "title": …, "text": …}`, and `url` may stand for `id`.

        Raises ValueError with file and line.
        """
        documents: dict[str, Document] = {}
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        document = _document(json.loads(line))
                        if document.id in documents:
                            raise ValueError(f"id '{document.id}' occurred before")  # noqa: TRY301 - with file and line
                    except ValueError as error:
                        raise ValueError(f"{path}:{number}: {error}") from error
                    documents[document.id] = document
        if not documents:
            raise ValueError(f"{path}: expected one document per line, found none")
        return cls(documents.values())

    def get(self, document_id: str) -> Document | None:
        """Return a document; None if there is none with this id."""
        return self._by_id.get(document_id)

    def search(self, query: str, *, first: int, count: int, snippet_chars: int) -> tuple[list[Hit], int]:
        """Return the hits from number `first` on, at most `count`, and the number of all hits.

        All documents with a word of the query are hits, best first; equals are in the order of the corpus.
        """
        words = [word for word in dict.fromkeys(_words(query)) if word in self._index.vocab_dict]
        if not words:
            return [], 0
        scores = self._index.get_scores(words)
        total = int((scores > 0).sum())
        chosen = np.argsort(-scores, kind="stable")[first : min(first + count, total)]
        documents = [self.documents[number] for number in chosen]
        return [Hit(document=item, snippet=snippet(item.text, words, snippet_chars)) for item in documents], total


def snippet(text: str, words: Sequence[str], size: int) -> str:
    """Return the part of a text with the most different words of a query, about `size` characters at whole words."""
    text = " ".join(text.split())
    if len(text) <= size:
        return text
    wanted = set(words)
    places = [(match.start(), match.group().lower()) for match in _WORD.finditer(text)]
    places = [(start, word) for start, word in places if word in wanted]
    starts = [start for start, _ in places] or [0]
    best = max(starts, key=lambda start: len({word for at, word in places if start <= at < start + size}))
    # A few words of context before the first one that was searched for.
    begin = max(0, min(best - size // 5, len(text) - size))
    begin = begin and text.find(" ", begin) + 1
    end = text.rfind(" ", begin, begin + size) if begin + size < len(text) else len(text)
    end = end if end > begin else begin + size
    return ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")


def split_parts(text: str, size: int) -> list[str]:
    """Split a text into parts of at most `size` characters, at paragraphs, else at spaces, else anywhere."""
    parts: list[str] = [""]
    for paragraph in filter(None, _PARAGRAPH.split(text.strip())):
        rest = paragraph
        if len(parts[-1]) + len(rest) + 2 <= size:
            parts[-1] = f"{parts[-1]}\n\n{rest}" if parts[-1] else rest
            continue
        while rest:
            cut = len(rest) if len(rest) <= size else max(rest.rfind(" ", 0, size + 1), 0) or size
            parts.append(rest[:cut])
            rest = rest[cut:].lstrip()
    return [part for part in parts if part] or [""]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _document(row: Any) -> Document:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, found {row!r:.60}")  # noqa: TRY004 - one error for wrong lines
    document_id, text = row.get("id", row.get("url")), row.get("text")
    if not isinstance(document_id, str) or not document_id or not isinstance(text, str):
        raise ValueError("expected texts in the fields `id` (or `url`) and `text`")
    return Document(id=document_id, title=str(row.get("title") or document_id), text=text)
