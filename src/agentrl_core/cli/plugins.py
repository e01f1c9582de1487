"""`agentrl plugins`: lists and shows the installed plugin packages; agentrl-testing adds `check` and `new`."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from agentrl_core.cli import HelpSwitch, PluginsGroup  # typer reads annotations at run time
from agentrl_core.cli.output import print_json, print_table
from agentrl_core.cli.printing import echo
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import PluginError
from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.manager import load_registry

if TYPE_CHECKING:
    from agentrl_core.plugins.registry import Entry, Package, Registry

# Plain help: importing rich would take longer than the command itself.
app = typer.Typer(
    cls=PluginsGroup, rich_markup_mode=None, add_completion=False, add_help_option=False, no_args_is_help=True
)


class QuickCommand(TyperCommand):
    """Command that skips typer's parser if it has no arguments.

    typer validates every option that is not a switch with pydantic, even if it is not given, and the import of pydantic
    costs more CPU time than the rest of this command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the defaults if there is nothing to parse."""
        if args:
            return super().parse_args(ctx, args)
        ctx.params = {parameter.name: parameter.get_default(ctx) for parameter in self.params}
        return []


_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def plugins(*, show_help: HelpSwitch = False) -> None:
    """Show what is installed and what each package provides."""


@app.command("list", cls=QuickCommand)
def list_(
    *,
    kind: Annotated[str, typer.Option(help="List the components of one kind: scorers, losses, …")] = "",
    as_json: _Json = False,
) -> None:
    """List the installed plugin packages.

    A broken package is listed with the reason; the others work without it.
    """
    registry = load_registry()
    if kind:
        _list_kind(registry, kind, as_json=as_json)
    elif as_json:
        print_json({"packages": [_package_json(item) for item in registry.packages], "clashes": registry.clashes()})
    else:
        rows = [(item.distribution, item.version, item.status, _provides(item)) for item in registry.packages]
        print_table(("PLUGIN", "VERSION", "STATUS", "PROVIDES"), rows)
        _print_notes([*registry.clashes(), *_near_misses(registry.packages)])


@app.command()
def show(name: Annotated[str, typer.Argument(help="Name of the package.")], *, as_json: _Json = False) -> None:
    """Show one package: its components and hooks.

    A broken package is shown with the whole traceback.
    """
    package = load_registry().package(name)
    trace = "".join(traceback.format_exception(package.error)) if package.error else ""
    if as_json:
        print_json(_package_json(package) | {"traceback": trace})
        return
    needs = f", declares agentrl-core{package.requires}" if package.requires else ""
    echo(f"{package.distribution} {package.version}: {package.status}{needs}")
    if package.status != "ok":
        echo(f"  {package.trouble}")
    print_table((), [(f"  {item.kind}", item.name, item.path, item.summary) for item in package.entries])
    if package.hooks:
        echo(f"  hooks  {' '.join(package.hooks)}")
    _print_notes(package.notes)
    if trace:
        echo(f"\n{trace}", nl=False)


def _list_kind(registry: Registry, kind: str, *, as_json: bool) -> None:
    if kind not in KINDS:
        raise PluginError(f"--kind: no kind '{kind}'{did_you_mean(kind, KINDS)}; kinds are {', '.join(KINDS)}")
    entries = registry.entries(kind)
    if as_json:
        print_json([_entry_json(item) for item in entries])
    else:
        rows = [(item.name, item.distribution, item.version, item.path, item.summary) for item in entries]
        print_table(("NAME", "PLUGIN", "VERSION", "PATH", "SUMMARY"), rows)


def _provides(package: Package) -> str:
    """Return `scorers: exact_match numeric  stores: sqlite`, or the reason why the package provides nothing."""
    if package.status != "ok":
        return package.reason
    names = {kind: [item.name for item in package.entries if item.kind == kind] for kind in KINDS}
    names["hooks"] = package.hooks
    return "  ".join(f"{kind}: {' '.join(items)}" for kind, items in names.items() if items)


def _near_misses(packages: Iterable[Package]) -> list[str]:
    return [f"{package.distribution} {package.version}: {note}" for package in packages for note in package.notes]


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(f"note: {note}")


def _entry_json(entry: Entry) -> dict[str, str]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "path": entry.path,
        "summary": entry.summary,
    }


def _package_json(package: Package) -> dict[str, Any]:
    return {
        "distribution": package.distribution,
        "version": package.version,
        "requires_core": package.requires,
        "status": package.status,
        "reason": package.reason,
        "provides": [_entry_json(item) for item in package.entries],
        "hooks": package.hooks,
        "notes": package.notes,
    }
