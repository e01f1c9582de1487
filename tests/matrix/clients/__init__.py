"""Clients of the matrix, in the order of its table."""

from .anthropic_messages import Anthropic
from .langchain import LangChainAnthropic, LangChainOpenAI, LangChainOpenAIResponses
from .openai_agents import AgentsChat, AgentsResponses
from .openai_chat import OpenAIChat, OpenAIChatSync
from .openai_completions import OpenAICompletions
from .openai_responses import OpenAIResponses, OpenAIResponsesChained
from .pydantic_ai import PydanticAnthropic, PydanticOpenAI, PydanticResponses
from .smolagents import Smolagents

CLIENTS = (
    OpenAIChat(),
    OpenAIChatSync(),
    OpenAIResponses(),
    OpenAIResponsesChained(),
    OpenAICompletions(),
    Anthropic(),
    LangChainOpenAI(),
    LangChainOpenAIResponses(),
    LangChainAnthropic(),
    AgentsResponses(),
    AgentsChat(),
    PydanticOpenAI(),
    PydanticResponses(),
    PydanticAnthropic(),
    Smolagents(),
)
