"""Read configs: `load`, `load_as`, `parse` and `parse_as` do all steps from text to `LoadedConfig`.

Read YAML and overrides, translate aliases, merge, structure, and report all problems at once with their places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from agentrl_core.config.aliases import FOREIGN_SECTIONS, NativeSpelling
from agentrl_core.config.conversion import ConfigFault, InvalidError
from agentrl_core.config.foreign_hints import counterpart
from agentrl_core.config.merge import ConfigTree
from agentrl_core.config.nodes import Assignment, Node, Place, Problem, assignments, describe, from_python, refusal
from agentrl_core.config.schema import RunConfig
from agentrl_core.config.sft import SftConfig
from agentrl_core.config.structure import default_of, hint_elsewhere, structure
from agentrl_core.config.yaml_text import read_file, read_override
from agentrl_core.errors import ConfigError

C = TypeVar("C", bound=RunConfig | SftConfig)


@attrs.frozen
class LoadedConfig(Generic[C]):
    """Checked config, with the place of each of its options if it was read from a file."""

    run: C
    base_dir: Path
    """Absolute folder from which relative paths in the config start: that of its file.

    Absolute, because other processes use it from other working directories: tool servers, agents, a resumed run."""
    _tree: ConfigTree | None = attrs.field(default=None, repr=False)
    file: Path | None = None
    """Its file; None if it was not read from one."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes on options of the file that no longer apply, because an override names another component."""
        return () if self._tree is None else tuple(self._tree.notes)

    def where(self, key: str) -> str:
        """Return the beginning of a message about a dotted key: `config.yaml:12: trainer.lr`, or the key alone.

        An option that is not set has the place of the nearest section around it that is.
        """
        return key if self._tree is None else f"{self._tree.find(key.split('.')).place.text}: {key}"

    def places(self, key: str) -> Callable[[str], str]:
        """Return the function `where` for the options of the component at `key`; "" stands for the component itself."""
        return lambda option: self.where(f"{key}.{option}" if option else key)


def load(path: str | Path, overrides: Sequence[str] = (), *, name: str | None = None) -> LoadedConfig[RunConfig]:
    """Read the YAML file of a run, apply `a.b=c` overrides in their order, and check types and values.

    `name` sets the run's name, like `--name`. Raises `ConfigError` with one line per problem.
    """
    return load_as(RunConfig, path, overrides, name=name)


def load_as(
    schema: type[C], path: str | Path, overrides: Sequence[str] = (), *, name: str | None = None
) -> LoadedConfig[C]:
    """Read the file of a `schema` other than `RunConfig`, in the same way as `load`."""
    path = Path(path)
    problems: list[Problem] = []
    root = read_file(path, problems)
    late = [read_override(text, index, problems) for index, text in enumerate(overrides)]
    if name:
        late.append(
            Assignment(("name",), Node(name, Place(f"command line: --name {name}", _LAST, is_override=True)), "name")
        )
    run, tree = _assemble(schema, root, Place(str(path)), late, problems)
    return LoadedConfig(run, path.parent.absolute(), tree, path)


def parse(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Return the `RunConfig` for plain data in the shape of a config file; raise `ConfigError` like `load`."""
    return parse_as(RunConfig, mapping, overrides)


def parse_as(schema: type[C], mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> C:
    """Parse plain data for a `schema` other than `RunConfig`, in the same way as `parse`."""
    problems: list[Problem] = []
    place = Place("config")
    late = [read_override(text, index, problems) for index, text in enumerate(overrides)]
    return _assemble(schema, from_python(mapping, place), place, late, problems)[0]


_LAST = 2 * 10**9
_PLACEHOLDER = re.compile(r"<YOUR_[A-Z0-9_]+>")
_FILES = (("data", "train"), ("data", "eval"), ("warm_start", "data"), ("model", "path"))


def _assemble(
    schema: type[C], root: Node, place: Place, late: Sequence[Assignment], problems: list[Problem]
) -> tuple[C, ConfigTree]:
    """Merge file and overrides, and structure the result; raise one `ConfigError` with all problems."""
    if root.value is not None and not isinstance(root.value, dict):
        raise ConfigError(f"{place.text}: expected `option: value` lines, found {describe(root.plain())}")
    early = list(assignments(Node(root.value or {}, place)))
    late = [part for item in late for part in assignments(item.node, item.path)]
    # Look for placeholders in the raw text: a placeholder may also fail other checks, which would hide the reason.
    unfilled = [problem for item in (*early, *late) for problem in _placeholders(item.node, item.spelled)]
    tree, spelling = ConfigTree(Node({}, place), default_of), NativeSpelling(problems)
    for item in spelling.translate(early):
        problems.extend(tree.assign(item))
    # Paths in the file start from its folder; paths on the command line start where the user is.
    for item in spelling.translate(late):
        problems.extend(tree.assign(_from_working_directory(item)))
    _keep_one_policy(tree)
    try:
        run = structure(tree.root.plain(), schema)
    except InvalidError as error:
        problems.extend(problem for finding in error.findings for problem in _located(finding, tree))
        raise refusal(_first_things_first(unfilled, problems)) from error
    if isinstance(run, RunConfig):
        problems.extend(_unusable_groups(run, tree))
    if unfilled or problems:
        raise refusal(_first_things_first(unfilled, problems))
    return run, tree


def _first_things_first(unfilled: Sequence[Problem], others: Sequence[Problem]) -> list[Problem]:
    """Drop further problems of values that are still placeholders: the user has to replace these anyway."""
    known = {id(problem.place) for problem in unfilled}
    return [*unfilled, *(problem for problem in others if id(problem.place) not in known)]


def _placeholders(node: Node, key: str) -> Iterator[Problem]:
    """Yield a problem for each `<YOUR_…>` placeholder that was left in a value."""
    if isinstance(node.value, list | dict):
        items = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
        for name, item in items:
            yield from _placeholders(item, f"{key}.{name}")
    elif isinstance(node.value, str) and (match := _PLACEHOLDER.search(node.value)):
        yield Problem(node.place, f"{key}: {match[0]} is a placeholder; replace it with your own value")


def _from_working_directory(assignment: Assignment) -> Assignment:
    """Resolve a file on the command line from the working directory, as the shell does, if it exists there.

    Otherwise it stays relative to the config file, like paths in that file.
    """
    value, path = assignment.node.value, assignment.path
    # Of a data set, only `use` may be a file, and no other option. `data.eval.NAME` is another set.
    is_source = len(path) == 2 or path[-1] == "use" or (path[:2] == ("data", "eval") and len(path) == 3)  # noqa: PLR2004
    if isinstance(value, str) and path[:2] in _FILES and is_source and Path(value).expanduser().exists():
        return attrs.evolve(assignment, node=Node(str(Path(value).expanduser().resolve()), assignment.node.place))
    return assignment


def _keep_one_policy(tree: ConfigTree) -> None:
    """Let `model.path=…` on the command line replace the file's `model.use` with its options, and the reverse."""
    model = tree.find(("model",)).value
    if not isinstance(model, dict) or not {"path", "use"} <= model.keys():
        return
    late = {name for name, node in model.items() if node.place.is_override}
    if len(late & {"path", "use"}) == 1:
        dropped = {"path"} if "use" in late else model.keys() - {"path", "dtype"}
        for name in dropped - late:
            del model[name]


def _unusable_groups(run: RunConfig, tree: ConfigTree) -> Iterator[Problem]:
    needed, size = run.rollout.min_group_size, run.rollout.group_size
    if needed > size:
        place = tree.find(("rollout", "group_size")).place
        yield Problem(place, f"rollout.group_size: expected at least rollout.min_group_size, {needed}, found {size}")


def _located(finding: ConfigFault, tree: ConfigTree) -> Iterator[Problem]:
    node = tree.find(finding.path)
    if finding.path[0] in FOREIGN_SECTIONS and isinstance(node.value, dict):
        for name, item in node.value.items():
            yield Problem(
                item.place, f"{finding.path[0]}.{name}: unknown option{counterpart(name) or hint_elsewhere(name)}"
            )
    else:
        yield Problem(node.place, f"{'.'.join(finding.path)}: {finding.text}")
