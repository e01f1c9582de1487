"""The kinds of components: for each the hook that registers it, and what core must know to list, check and build it.

Discovery, the registry, the checks before a run, the run itself and `agentrl plugins` derive what they do from `KINDS`.
A new kind is one more hook here. With it come

- the option in `config/schema.py`, or in a module of its sections, that names its components, and
  `cookbook/config.md`, which `python -m tests.config.config_page` writes,
- its protocol in `api/`, and the place that uses its components,
- a built-in one in `builtins.py`, if it needs a default,
- a line in `tests/plugins/hookspecs.txt`, and one in the table of `cookbook/architecture.md`,
- a suite for authors, and a template of `agentrl plugins new`, in `plugins/agentrl-testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.plugins.hookspecs import hookspec

if TYPE_CHECKING:
    from agentrl_core.api.compaction import ContextPolicy
    from agentrl_core.api.engines import Engine
    from agentrl_core.api.group_queue import GroupOrder
    from agentrl_core.api.losses import Correction, LossCalculator
    from agentrl_core.api.stores import Store
    from agentrl_core.api.tools import ToolMiddleware, ToolServer
    from agentrl_core.api.trackers import Tracker
    from agentrl_core.api.workflow import Workflow
    from agentrl_core.plugins.hookspecs import Register
    from agentrl_core.types import Task

HookT = TypeVar("HookT", bound=Callable[..., None])


@attrs.frozen(kw_only=True)
class Kind:
    """Facts about one kind of component that apply to all of its components."""

    name: str
    """Name in the plural, as in `register_filters` and in the entry-point group `agentrl.filters`."""
    singular: str
    """Name in the singular, for messages."""
    hook: Callable[..., None] = attrs.field(repr=False)
    """Specification of the hook that registers components of the kind."""
    option: str = ""
    """Dotted option of the config that holds one component of the kind, or a list of them; the checks before a run
    go through these. Empty for kinds that other code reads: from the sections `loss`, `advantage`, `model`, `data` and
    `workflow`, from tasks, or not from the config at all."""
    protocol: str = ""
    """Place "module:attr" of the protocol that components implement; empty for plain functions and for commands."""
    method: str = ""
    """Method that every component must have; that of a class is looked for before the class is built."""
    from_function: str = ""
    """Place "module:attr" of `wrap(built, name, where=…)`, which makes a component of a plain function."""
    problem: str = ""
    """Place "module:attr" of `problem(built)`, which says what is wrong with a component; None for nothing."""
    arguments: Mapping[str, str] = attrs.field(factory=dict)
    """Arguments that constructors get in addition to the component's options -> the dotted option of the config that
    gives the value; empty for values that only the run has."""
    own_part: str = ""
    """Place "module:attr" of `own_part(component, key, where)`, which returns the component without the options that
    the run itself reads, and further arguments; for kinds whose entries have such options."""
    only_declared: bool = False
    """Whether a signature must name such an argument to get it; otherwise `**kwargs` gets all of them."""
    early: bool = False
    """Whether the checks before a run build it, because its constructor only keeps its options; the run then uses what
    they built. Others are built when the run has its folder: they open files or load weights."""
    is_callable: bool = True
    """Whether what is registered must be a class or another callable."""


KINDS: dict[str, Kind] = {}
"""Name -> kind, in the order of lists and checks."""


def kind(singular: str, **facts: Any) -> Callable[[HookT], HookT]:
    """Make a `register_…` function the specification of a hook, and enter its kind into `KINDS`."""

    def enter(hook: HookT) -> HookT:
        name = hook.__name__.removeprefix("register_")
        KINDS[name] = Kind(name=name, singular=singular, hook=hookspec(hook), **facts)
        return hook

    return enter


@kind("workflow", protocol="agentrl_core.api.workflow:Workflow", is_callable=False)
def register_workflows(register: Register[Callable[..., Any]]) -> None:
    """Register workflows: agents that run one episode on one task.

    A class is built with the config's options; a plain function is the workflow itself, and its keyword-only
    parameters are its options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_workflows(register):
            register("math_agent", "agentrl_qa.agent:MathAgent", summary="solves word problems in one turn")
    """


@kind(
    "scorer",
    protocol="agentrl_core.api.scoring:Scorer",
    arguments={"scorer_of": "", "config_dir": ""},
    only_declared=True,
)
def register_scorers(register: Register[Callable[..., Any]]) -> None:
    """Register scorers: callables that score one finished episode.

    A task names its scorer in the field `scorer`. Two packages may use one name; a task with the bare name is then
    refused, and must say `distribution/name`. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_scorers(register):
            register("rouge", "agentrl_qa.rouge:score", summary="overlap of n-grams in [0, 1]")
    """


@kind(
    "loss",
    protocol="agentrl_core.api.losses:LossCalculator",
    method="loss",
    problem="agentrl_core.losses.contract:problem_of_needs",
    early=True,
)
def register_losses(register: Register[Callable[..., LossCalculator]]) -> None:
    """Register loss calculators: policy-gradient surrogates, chosen by `loss: {use: NAME}`.

    The options of the section are the constructor's arguments. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_losses(register):
            register("dr_grpo", "agentrl_drgrpo.loss:DrGRPO", summary="GRPO without length or std normalization")
    """


@kind(
    "correction",
    protocol="agentrl_core.api.losses:Correction",
    method="correct",
    problem="agentrl_core.losses.contract:problem_of_needs",
    early=True,
)
def register_corrections(register: Register[Callable[..., Correction]]) -> None:
    """Register corrections: wrappers of any loss, listed in `loss: {corrections: [{use: NAME, …}]}`.

    A correction is a factor on the loss's terms, a mask, or an added term; the first in the list is applied first.
    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_corrections(register):
            register("drop_first", "agentrl_tricks.corrections:DropFirst", summary="first tokens do not train")
    """


@kind("advantage", protocol="agentrl_core.api.batching:AdvantageEstimator", method="advantages", early=True)
def register_advantages(register: Register[Callable[..., Any]]) -> None:
    """Register advantage estimators: one number per record of a group, chosen by `advantage: {use: NAME}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_advantages(register):
            register("median", "agentrl_robust.advantages:Median", summary="reward minus the group's median")
    """


@kind(
    "credit",
    protocol="agentrl_core.api.batching:Credit",
    option="credit",
    method="credit",
    arguments={"turn_discount": "rollout.agent.turn_discount"},
    early=True,
)
def register_credits(register: Register[Callable[..., Any]]) -> None:
    """Register credit assignments: they share a record's reward among its interactions, `credit: {use: NAME}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_credits(register):
            register("last_turn", "agentrl_robust.credit:LastTurn", summary="everything to the last interaction")
    """


@kind(
    "shaping",
    protocol="agentrl_core.api.batching:Shaping",
    option="shaping",
    method="shape",
    from_function="agentrl_core.batching.shaping:as_shaping",
    early=True,
)
def register_shapings(register: Register[Callable[..., Any]]) -> None:
    """Register shapings: transformations of rewards before the baseline, in the order of the config's `shaping`.

    A shaping is a class with `shape(group, rewards)`, or a function of a group and its rewards with keyword-only
    options.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_shapings(register):
            register("per_token", "agentrl_robust.shaping:PerToken", summary="rewards by the number of tokens")
    """


@kind(
    "filter",
    protocol="agentrl_core.api.batching:Filter",
    option="filters",
    method="keep",
    from_function="agentrl_core.batching.filters:as_filter",
    early=True,
)
def register_filters(register: Register[Callable[..., Any]]) -> None:
    """Register filters: rules that choose which groups are trained, in the order of the config's `filters`.

    A filter is a class with `keep(group, advantages)` and `reason`, or a function of a group with keyword-only
    options.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_filters(register):
            register("too_easy", "agentrl_robust.filters:TooEasy", summary="drops groups with a mean above a limit")
    """


@kind(
    "group order",
    option="rollout.order",
    protocol="agentrl_core.api.group_queue:GroupOrder",
    method="urgency",
    early=True,
)
def register_group_orders(register: Register[Callable[..., GroupOrder]]) -> None:
    """Register orders in which a step takes the groups that are ready, chosen by `rollout: {order: {use: NAME}}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_group_orders(register):
            register("rare_first", "agentrl_robust.orders:RareFirst", summary="tasks that were trained least first")
    """


@kind(
    "engine",
    option="engine",
    protocol="agentrl_core.api.engines:Engine",
    method="generate",
    arguments={
        "model_dir": "",
        "log_dir": "",
        "seed": "seed",
        "dtype": "model.dtype",
        "publish": "weights.publish",
        "publish_dtype": "weights.dtype",
    },
)
def register_engines(register: Register[Callable[..., Engine]]) -> None:
    """Register inference engines: token ids in, token ids with logprobs out, chosen by `engine: {use: NAME}`.

    Built with those of `model_dir`, `log_dir`, `seed`, `dtype`, `publish` and `publish_dtype` (of the section
    `weights`) that the constructor takes, beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_engines(register):
            register("fleet", "agentrl_fleet.engine:FleetEngine", summary="many servers behind one router")
    """


@kind(
    "store",
    option="store",
    protocol="agentrl_core.api.stores:Store",
    method="take_groups",
    arguments={"path": "", "run": ""},
)
def register_stores(register: Register[Callable[..., Store]]) -> None:
    """Register stores: storage of runs, records and interactions, chosen by `store: {use: NAME}`.

    Built with `path`, the run's database file, and `run`, its name, beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_stores(register):
            register("duck", "agentrl_duck.store:DuckStore", summary="one DuckDB file per run")
    """


@kind(
    "tracker",
    option="trackers",
    protocol="agentrl_core.api.trackers:Tracker",
    method="step_finished",
    arguments={"run_dir": ""},
)
def register_trackers(register: Register[Callable[..., Tracker]]) -> None:
    """Register trackers: receivers of a run's metrics, listed in the config's `trackers`.

    Built with `run_dir` beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_trackers(register):
            register("csv", "agentrl_csv:CsvTracker", summary="one row per step in metrics.csv")
    """


@kind("tool parser", option="gateway.tool_parser", protocol="agentrl_core.api.tool_parsers:ToolParser", method="read")
def register_tool_parsers(register: Register[Callable[..., Any]]) -> None:
    """Register tool-call parsers: they split a sampled reply's text into content and tool calls.

    Chosen by `gateway.tool_parser`, or by its method `recognise`; a parser implements
    `agentrl_core.api.tool_parsers.ToolParser`. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_tool_parsers(register):
            register("pythonic", "agentrl_pythonic:PythonicParser", summary="[name(argument=value)]")
    """


@kind(
    "tool server",
    option="tools.servers",
    protocol="agentrl_core.api.tools:ToolServer",
    method="open",
    arguments={"name": "", "config_dir": ""},
    own_part="agentrl_core.tools.entries:own_part",
    only_declared=True,
    early=True,
)
def register_tools(register: Register[Callable[..., ToolServer]]) -> None:
    """Register tool servers: sources of tools for agents, listed in `tools: {servers: [{use: NAME, …}]}`.

    Built with `name`, the server's name in the run, and `config_dir`, the absolute path of the config's folder, if the
    constructor has them. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_tools(register):
            register("grpc", "agentrl_grpc.server:GrpcTools", summary="tools of a gRPC service")
    """


@kind(
    "tool middleware",
    option="tools.middleware",
    protocol="agentrl_core.api.tools:ToolMiddleware",
    method="call",
    arguments={"config_dir": ""},
    only_declared=True,
    early=True,
)
def register_tool_middleware(register: Register[Callable[..., ToolMiddleware]]) -> None:
    """Register tool middleware: wrappers of tool calls, in the order of `tools: {middleware: [{use: NAME, …}]}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_tool_middleware(register):
            register("redact", "agentrl_redact:Redact", summary="removes e-mail addresses from results")
    """


@kind("context", option="context", protocol="agentrl_core.api.compaction:ContextPolicy", method="compact", early=True)
def register_contexts(register: Register[Callable[..., ContextPolicy]]) -> None:
    """Register context policies: they shorten the history of long episodes, chosen by `context: {use: NAME}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_contexts(register):
            register("forget_code", "agentrl_forget:ForgetCode", summary="drops code blocks of older turns")
    """


@kind("model", arguments={"directory": "", "seed": "seed", "conversations": ""})
def register_models(register: Register[Callable[..., None]]) -> None:
    """Register model builders: functions that write a model with random weights, `model: {use: NAME}`.

    Called with `directory`, `seed` and `conversations` beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_models(register):
            register("mixture", "agentrl_moe.build:build", summary="a tiny mixture of experts")
    """


@kind("dataset", arguments={"config_dir": ""}, only_declared=True)
def register_datasets(register: Register[Callable[..., Callable[[], list[Task]]]]) -> None:
    """Register data sets: sources of tasks, chosen by `data: {train: {use: NAME, …}}` and `data.eval`.

    A data set is a function without arguments that returns tasks, and whose keyword-only parameters are its options;
    or a class that is built with its options, and called. It gets `config_dir`, the config's folder, if it has such an
    option. Equal options must give equal tasks. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_datasets(register):
            register("countdown", "agentrl_countdown:tasks", summary="reach a number with four others")
    """


@kind("adapter", protocol="agentrl_core.api.workflow:Workflow")
def register_adapters(register: Register[Callable[..., Workflow]]) -> None:
    """Register adapters of agent frameworks, for `agentrl plugins list`; `adapt_agent` does the work.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_adapters(register):
            register("crew", "agentrl_crew.adapter:CrewWorkflow", summary="Crew objects and factories of them")
    """


@kind("worker adapter")
def register_worker_adapters(register: Register[Any]) -> None:
    """Register adapters that run in another interpreter (`rollout.agent.python`), each as a "module:attr" string.

    The function is called there as `adapt(agent, options)`, and, if it has that parameter, with the keyword
    `factory`: a callable that makes another agent, or None. It returns an object with `run(data, …)`, or None if the
    agent is of another framework. The package is loaded there from its folder alone, so the module may import the
    standard library, the framework and its own package, never agentrl_core. If the module has a function
    `prepare()`, it is called before the agent's module is imported, for example to set variables that the framework
    reads. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_worker_adapters(register):
            register("crew", "agentrl_crew.worker:adapt", summary="Crew objects in their own interpreter")
    """


@kind("command", is_callable=False)
def register_commands(register: Register[Any]) -> None:
    """Register commands of the `agentrl` command line: a `typer.Typer`, or a function with typer's annotations.

    `agentrl --help` lists only commands that are declared under the entry-point group `agentrl.commands`; a command
    that is registered here runs as well. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_commands(register):
            register("leaderboard", "agentrl_board.cli:app", summary="compare runs")
    """
