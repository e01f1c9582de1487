"""The command line starts light, and ends every failure with a line and an exit code."""

import json

import pytest
import typer

from agentrl_core import cli
from agentrl_core.errors import ConfigError, Interrupted, RunError, Terminated
from agentrl_core.plugins import builtins

HEAVY = {"torch", "transformers", "openai", "anthropic", "langchain_core", "motor", "fastapi", "starlette"}
HTTP_CLIENTS = {"aiohttp", "httpx2"}
LIGHT_TOO = {"rich", "pydantic", "cattrs", "yaml", "numpy"}
RUNNER = (
    "import json, sys\n"
    "from agentrl_core.cli import main\n"
    "code = main(sys.argv[1:])\n"
    "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)\n"
)


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["--version"]])
def test_light_commands_import_nothing_heavy(launch, sample_site, arguments):
    done = launch(*arguments, site=sample_site, program=["-c", RUNNER])
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    assert (HEAVY | HTTP_CLIENTS | LIGHT_TOO) & set(modules) == set()


@pytest.mark.parametrize(
    ("command", "fault", "told"),
    [
        ("run", "worklow: agent.py:Agent", "config.yaml:3: worklow: unknown option"),
        ("config check", "worklow: agent.py:Agent", "config.yaml:3: worklow: unknown option"),
        ("run", "workflow: agent.py:Agent", "config.yaml:2: data.train: no such task file"),
        ("config check", "workflow: agent.py:Agent", "config.yaml:3: workflow: there is no file"),
        ("run", "engine: {use: embedded, slotz: 1}", "config.yaml:3: engine.slotz: unknown option"),
        ("run", "loss: {use: ppo, corrections: [{use: kl, bta: 1.0}]}", "corrections.0.bta: unknown option"),
        ("config show", "loss: {use: ppo, corrections: [{use: kl, beta: 1.0}]}", None),
    ],
)
def test_a_faulty_config_is_told_without_torch(launch, tmp_path, command, fault, told):
    path = tmp_path / "config.yaml"
    path.write_text(f"model: {{use: tiny}}\ndata: tasks.jsonl\n{fault}\n", encoding="utf-8")
    done = launch(*command.split(), str(path), program=["-c", RUNNER])
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert HEAVY & set(modules) == set()
    assert code == (0 if told is None else 2), done.stderr
    assert (told or "") in done.stderr


def test_importing_the_package_imports_nothing_of_it(launch):
    program = "import sys, agentrl_core; print([name for name in sys.modules if name.startswith('agentrl_core.')])"
    assert launch(program=["-c", program]).stdout.strip() == "[]"


def test_a_run_without_model_servers_imports_no_client_of_them(launch):
    program = (
        "import sys, agentrl_core.run.start, agentrl_core.engines.embedded, agentrl_core.gateway.policy_calls\n"
        "from agentrl_core.gateway.upstreams import Upstreams\n"
        "Upstreams({})\n"
        "print('aiohttp' in sys.modules)"
    )
    assert launch(program=["-c", program]).stdout.strip() == "False"


def test_plugins_list_ends_well_with_broken_packages_installed(launch, sample_site):
    done = launch("plugins", "list", site=sample_site)
    assert (done.returncode, done.stderr) == (0, "")
    assert [
        name for name in ("broken", "clash", "newer", "direct", "good") if f"agentrl-{name} " not in done.stdout
    ] == []


def test_the_version_is_that_of_the_package(launch):
    from importlib.metadata import version

    assert launch("--version").stdout == f"agentrl {version('agentrl-core')}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(launch):
    done = launch()
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


def test_the_process_ends_although_a_thread_of_an_agent_goes_on(launch):
    program = (
        "import signal, sys, threading\n"
        "from agentrl_core import cli\n"
        "cli._LEAVING_S = 0.2\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "sys.argv = ['agentrl', 'plugins', 'show', 'nothing-of-that-name']\n"
        "code = cli.main()\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "sys.exit(code)\n"
    )
    done = launch(program=["-c", program])
    assert done.returncode == 2, done.stderr
    assert "nothing-of-that-name" in done.stderr
    assert "Traceback" not in done.stderr  # Ctrl-C could only break this end


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a made-up command `act` that does what it is given."""

    def run(action, *arguments):
        def act(value: str = "") -> None:
            """Act."""
            action()

        monkeypatch.setattr("agentrl_core.cli.COMMANDS", {"act": ("Act.", f"{__name__}:act")})
        monkeypatch.setattr("agentrl_core.cli.resolve", lambda path: type("Found", (), {"value": staticmethod(act)}))
        code = cli.main(arguments or ["act"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("config.yaml:9: loss.clipp: unknown"), 2, "error: config.yaml:9: loss.clipp: unknown"),
        (RunError("disk full"), 1, "error: disk full"),
        (ZeroDivisionError("by zero"), 1, "error: ZeroDivisionError: by zero (--debug shows the traceback)"),
        (OSError(28, "No space left"), 1, "error: OSError: [Errno 28] No space left (--debug shows the traceback)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("after step 3, which is saved"), 130, "after step 3, which is saved"),
        (Terminated("after step 3, which is saved", 143), 143, "after step 3, which is saved"),
        (typer.BadParameter("no"), 2, None),
        (typer.Exit(7), 7, ""),
        (SystemExit("words"), 1, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_each_failure_has_its_line_and_exit_code(command, error, code, line):
    found, out, err = command(raising(error))
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    if line is not None:
        assert err.strip() == line


@pytest.mark.parametrize("arguments", [["--debug", "act"], ["act", "--debug"], ["act", "--value", "x", "--debug"]])
def test_debug_anywhere_shows_the_traceback_too(command, arguments):
    code, _, err = command(raising(RunError("disk full")), *arguments)
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("error: disk full\n")


def test_success_is_zero(command):
    assert command(lambda: typer.echo("done")) == (0, "done\n", "")


def test_public_names_are_there_and_known():
    import agentrl_core

    for name in agentrl_core.__all__:
        assert getattr(agentrl_core, name) is not None
    assert dir(agentrl_core) == agentrl_core.__all__
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = agentrl_core.Trainr


def test_the_table_of_commands_is_registered_like_any_other():
    from agentrl_testing.plugins import isolated_plugins

    with isolated_plugins() as registry:
        assert {entry.name for entry in registry.entries("commands")} == set(builtins.COMMANDS)


@pytest.mark.parametrize("command", ["run", "init", "doctor", "config", "trace"])
def test_help_is_plain_for_every_command(launch, command):
    text = launch(command, "--help").stdout
    assert "Options:" in text
    assert "╭" not in text
