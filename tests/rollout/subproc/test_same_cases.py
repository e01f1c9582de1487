"""A workflow is found, built and checked by the same rules in the run's process and in another interpreter."""

import inspect
import sys

import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import AgentRLError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.inside.foreign_workflow import ForeignWorkflow, Refused
from agentrl_core.rollout.workflows import resolve_workflow

FILES = {
    "agents_of_cases.py": """
import functools
from sibling_of_cases import WEIGHT

def plain(data): return data["x"]
def keyed(row, api_key, *, record_id="none", bonus=0.0): return bonus
def catch_all(data, **kwargs): return 1.0
def any_number(*args): return 2.0
async def is_async(data, *, base_url): return 3.0
def default(data=None): return 4.0
def nothing(): return 4.0
def demanding(data, secret): return 5.0
def yields(data): yield 6.0
bound = functools.partial(plain)

class Agent:
    class Inner:
        def run(self, data): return 7.0
    def __init__(self, weight=WEIGHT): self.weight = weight
    def run(self, data, is_eval=False): return self.weight

class Called:
    def __call__(self, data): return 9.0

class NoRun: pass
class RunOnPrompt:
    def run(self, prompt): return 10.0
def make(*, weight=11.0): return Agent(weight)
agent = Agent(12.0)
called = Called()
""",
    "sibling_of_cases.py": "WEIGHT = 8.0\n",
    "json.py": "def run(data): return 13.0\n",
    "folder_of_cases/agent-1.py": "def run(data): return 14.0\n",
    "package_of_cases/__init__.py": "from package_of_cases.inner import run as exported\n",
    "package_of_cases/inner.py": "def run(data): return 15.0\nclass Agent:\n    def run(self, data): return 16.0\n",
    "broken_of_cases.py": "import nowhere_to_be_found\n",
    "syntax_of_cases.py": "def run(data) return 1.0\n",
    "exits_of_cases.py": "raise SystemExit(3)\n",
    "raises_of_cases.py": "raise ValueError('no  license\\nfor this')\n",
}
CLOSED = {"json.py": "def run(data): return 0.0\n", "sibling_of_cases.py": "WEIGHT = 0.0\n"}
"""Files of the second folder, which the first hides."""

RETURNS = [
    ("agents_of_cases.py:plain", {}, 0.5),
    ("agents_of_cases:plain", {}, 0.5),
    ("agents_of_cases.plain", {}, 0.5),
    ("./agents_of_cases.py:plain", {}, 0.5),
    ("agents_of_cases.py:bound", {}, 0.5),
    ("agents_of_cases.py:keyed", {"bonus": 0.25}, 0.25),
    ("agents_of_cases.py:catch_all", {}, 1.0),
    ("agents_of_cases.py:any_number", {}, 2.0),
    ("agents_of_cases.py:is_async", {}, 3.0),
    ("agents_of_cases.py:Agent", {}, 8.0),
    ("agents_of_cases.py:Agent", {"weight": 0.75}, 0.75),
    ("agents_of_cases.py:Agent.Inner", {}, 7.0),
    ("agents_of_cases.py:called", {}, 9.0),
    ("agents_of_cases.py:Called", {}, 9.0),
    ("agents_of_cases.py:RunOnPrompt", {}, 10.0),
    ("agents_of_cases.py:make", {}, 11.0),
    ("agents_of_cases.py:make", {"weight": 0.5}, 0.5),
    ("agents_of_cases.py:agent", {}, 12.0),
    ("json.py:run", {}, 13.0),
    ("folder_of_cases/agent-1.py:run", {}, 14.0),
    ("package_of_cases.inner.run", {}, 15.0),
    ("package_of_cases.inner:run", {}, 15.0),
    ("package_of_cases.exported", {}, 15.0),
    ("package_of_cases.inner.Agent", {}, 16.0),
]

REFUSED = [
    ("agents_of_cases.py:default", {}, "has no"),
    ("agents_of_cases.py:nothing", {}, "float"),
    ("agents_of_cases.py:demanding", {}, "demanding(data, secret) cannot be called with (data, base_url, api_key, "),
    ("agents_of_cases.py:yields", {}, "yields(data) yields; expected a function that returns the reward"),
    ("agents_of_cases.py:NoRun", {}, "has no `run(data)`"),
    ("agents_of_cases.py:Agent", {"wieght": 1}, "workflow.wieght"),
    ("agents_of_cases.py:agent", {"weight": 1}, "workflow.weight"),
    ("agents_of_cases.py:Agnt", {}, "has no 'Agnt'"),
    ("agents_of_cases.py:Agent.Outer", {}, "has no 'Outer'"),
    ("package_of_cases.Agent", {}, "has no 'Agent'"),
    ("absent_of_cases.py:run", {}, "there is no file"),
    ("absent_of_cases.run", {}, "absent_of_cases"),
    ("broken_of_cases.py:run", {}, "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ("broken_of_cases.run", {}, "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ("syntax_of_cases.py:run", {}, "`def run(data) return 1.0`"),
    ("exits_of_cases.py:run", {}, "SystemExit: 3"),
    ("raises_of_cases.py:run", {}, "ValueError: no "),
]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders with modules, the first beside the config; no trace of them is left in this process."""
    first, second = tmp_path / "config", tmp_path / "here"
    for folder, files in ((first, FILES), (second, CLOSED)):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(second)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = set(sys.modules)
    yield first, second
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")) or "_of_cases" in name:
            del sys.modules[name]


@pytest.fixture(params=["inline", "foreign"])
def find(request, folders):
    """Return the function of a workflow, and the injected arguments that it accepts."""

    def inline(use, options):
        call = resolve_workflow(Component(use, options), registry=load_registry(), base_dir=folders[0]).call
        return call.function, call.accepted

    def foreign(use, options):
        start = {
            "use": use, "options": options, "folders": [str(folder) for folder in folders], "packages": {},
            "adapters": [], "places": {"": "workflow", **{option: f"workflow.{option}" for option in options}},
        }  # fmt: skip
        loaded = ForeignWorkflow(start)
        return loaded.function, loaded.accepted

    return {"inline": inline, "foreign": foreign}[request.param]


@pytest.mark.parametrize(("use", "options", "expected"), RETURNS, ids=str)
def test_a_workflow_is_found_and_built(find, use, options, expected):
    function, accepted = find(use, options)
    returned = function({"x": 0.5}, **dict.fromkeys(accepted - {"http_client"}))
    if inspect.iscoroutine(returned):
        with pytest.raises(StopIteration) as stopped:
            returned.send(None)
        returned = stopped.value.value
    assert returned == expected


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("plain", set()),
        ("keyed", {"api_key", "record_id"}),
        ("catch_all", {"base_url", "api_key", "record_id", "is_eval"}),
        ("is_async", {"base_url"}),
        ("Agent", {"is_eval"}),
    ],
)
def test_it_gets_what_its_signature_accepts(find, name, accepted):
    assert find(f"agents_of_cases.py:{name}", {})[1] - {"http_client"} == accepted


@pytest.mark.parametrize(("use", "options", "message"), REFUSED, ids=str)
def test_what_is_no_workflow_is_refused_for_the_same_reason(find, use, options, message):
    with pytest.raises((AgentRLError, Refused)) as caught:
        find(use, options)
    assert message in str(caught.value)
