"""The package plugs in under two names, and a run with it says what a person needs to know."""

import asyncio
import json
import threading

import pytest

from agentrl_core.config import load
from agentrl_core.errors import ConfigError
from agentrl_core.plugins import load_registry
from agentrl_core.run.checks import Given, check_config
from agentrl_core.run.components import resolve
from agentrl_core.testing import isolated_plugins
from agentrl_judge import hooks
from agentrl_judge.testing import JudgeServer
