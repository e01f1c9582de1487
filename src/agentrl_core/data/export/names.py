"""Names of the export formats, which the command line shows without loading the formats themselves."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Format(StrEnum):
    """Form of an exported file."""

    about: str
    """Description for `--help`."""

    SFT = "sft", "demonstrations for agentrl sft"
    JSONL = "jsonl", "whole episodes, without loss"
    CHAT = "chat", "messages in OpenAI's form"
    ATIF = "atif", "Harbor's trajectories"
    AGENTRL = "agentrl", "documents of AgentCPM's AgentRL"
    PARQUET = "parquet", "jsonl as columns"

    def __new__(cls, name: str, about: str) -> Self:
        """Make a member whose value is its name."""
        member = str.__new__(cls, name)
        member._value_, member.about = name, about
        return member
