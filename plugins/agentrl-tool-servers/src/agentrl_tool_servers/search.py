"""The server `search`: search and browse a corpus of documents, so that research runs without a network."""

from __future__ import annotations

from typing import Annotated, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_tool_servers import command
from agentrl_tool_servers.corpus import Corpus, split_parts

_READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_LONGEST_QUERY: Final = 1000


def server(corpus: str | Corpus, *, results: int = 5, snippet_chars: int = 300, part_chars: int = 4000) -> MCPServer:
    """Return the server of a corpus, or of the JSONL file with it.

    A page of results has `results` of them, each with a snippet of about `snippet_chars` characters; a document is read
    in parts of at most `part_chars` characters.
    """
    if min(results, snippet_chars, part_chars) < 1:
        raise ValueError("results, snippet_chars and part_chars: expected numbers of at least 1")
    known = corpus if isinstance(corpus, Corpus) else Corpus.read(corpus)
    mcp = MCPServer("search", log_level="WARNING")

    @mcp.tool(annotations=_READS, structured_output=False)
    async def search(
        query: Annotated[str, Field(description="words to look for", max_length=_LONGEST_QUERY)],
        page: Annotated[int, Field(ge=1, description="number of the page of results")] = 1,
    ) -> str:
        """Search the documents by words, best first; read one by browse with its id."""
        first = (page - 1) * results
        hits, total = known.search(query, first=first, count=results, snippet_chars=snippet_chars)
        pages = -(-total // results)
        if not hits:
            return f"no more results; there are {pages} pages" if total else "no results"
        lines = [f"{hit.document.title} [{hit.document.id}]: {hit.snippet}" for hit in hits]
        if page < pages:
            lines.append(f"(page {page} of {pages})")
        return "\n".join(lines)

    @mcp.tool(annotations=_READS, structured_output=False)
    async def browse(
        id: Annotated[str, Field(description="id of a document, as search shows it")],  # noqa: A002 - the model's name
        part: Annotated[int, Field(ge=1, description="number of the part of a long document")] = 1,
    ) -> str:
        """Read a document."""
        document = known.get(id.strip())
        if document is None:
            raise ToolError(f"there is no document '{id[:100]}'; use an id that search shows")
        parts = split_parts(document.text, part_chars)
        if part > len(parts):
            raise ToolError(f"the document has {len(parts)} parts")
        number = f" (part {part} of {len(parts)})" if len(parts) > 1 else ""
        return f"{document.title}{number}\n{parts[part - 1]}"

    return mcp


def main(arguments: list[str] | None = None) -> None:
    """Run the server."""
    parser = command.parser("agentrl_tool_servers.search", "Search and browse a corpus of documents.")
    parser.add_argument("corpus", help="JSONL file, one document per line with id, title and text")
    parser.add_argument("--results", type=int, default=5, help="results of a page")
    parser.add_argument("--snippet-chars", type=int, default=300)
    parser.add_argument("--part-chars", type=int, default=4000)
    options = parser.parse_args(arguments)
    command.run(
        lambda: server(
            options.corpus,
            results=options.results,
            snippet_chars=options.snippet_chars,
            part_chars=options.part_chars,
        ),
        options.http,
    )


if __name__ == "__main__":
    main()
