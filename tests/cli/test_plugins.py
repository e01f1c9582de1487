"""`agentrl plugins` with the sample packages installed by pip, and `main` around it."""

import json
import re
import sys

import pytest

from agentrl_core.cli import main

CLASH = (
    "scorer 'gsm8k' is registered by agentrl-clash and agentrl-direct; "
    "write agentrl-clash/gsm8k or agentrl-direct/gsm8k"
)
NEWER = (
    "written for a newer agentrl-core (uses argument 'context' of register_scorers); have 0.1.0, "
    "it declares agentrl-core>=0.2"
)


@pytest.fixture
def samples(sample_site, monkeypatch):
    """The sample packages on the import path of this process."""
    monkeypatch.syspath_prepend(str(sample_site))
    for name in ("AGENTRL_BLOCK_PLUGINS", "AGENTRL_LOAD_PLUGINS", "AGENTRL_TRACE_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(sample_site)):
            del sys.modules[name]


@pytest.fixture
def cli(samples, capsys):
    def run(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def rows(text):
    """Lines of a table, split where two spaces stand."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_list_shows_every_package_with_its_status(cli):
    code, out, err = cli("plugins", "list")
    table = {row[0]: row[1:] for row in rows(out)}
    assert (code, err) == (0, "")
    assert table["PLUGIN"] == ["VERSION", "STATUS", "PROVIDES"]
    assert table["agentrl-good"] == [
        "0.1.0",
        "ok",
        "scorers: words_f1",
        "trackers: tally",
        "commands: greet",
        "hooks: run_started",
    ]
    assert table["agentrl-direct"] == ["0.5.0", "ok", "scorers: gsm8k"]
    assert table["agentrl-broken"][:2] == ["0.2.0", "error"]
    assert table["agentrl-broken"][2] == "ModuleNotFoundError: No module named 'sglang_that_is_not_here'"
    assert table["agentrl-newer"] == ["0.4.0", "error", NEWER]
    assert table["agentrl-core"][1:3] == ["ok", "workflows: single_turn multi_turn"]


def test_list_notes_clashes_and_near_misses(cli):
    notes = [line for line in cli("plugins", "list")[1].splitlines() if line.startswith("note: ")]
    clash, hook, group = notes
    source = "note: agentrl-clash 0.3.0: "
    assert clash == f"note: {CLASH}"
    assert hook == f"{source}no hook is called 'register_scorer' (did you mean register_scorers?); it is never called"
    wrong = "entry-point group 'agentrl.scorer': there is no kind 'scorer' (did you mean scorers?)"
    assert group == f"{source}{wrong}; 'misspelt' is ignored"


def test_list_shows_what_blocks_a_package(cli, monkeypatch):
    monkeypatch.setenv("AGENTRL_BLOCK_PLUGINS", "agentrl-clash,agentrl_broken")
    table = {row[0]: row[1:] for row in rows(cli("plugins", "list")[1])}
    assert table["agentrl-broken"] == ["0.2.0", "blocked", "AGENTRL_BLOCK_PLUGINS"]
    assert CLASH not in table


def test_list_as_json(cli):
    listed = json.loads(cli("plugins", "list", "--json")[1])
    packages = {item["distribution"]: item for item in listed["packages"]}
    assert listed["clashes"] == [CLASH]
    assert packages["agentrl-newer"]["reason"] == NEWER
    assert packages["agentrl-newer"]["requires_core"] == ">=0.2"
    assert packages["agentrl-good"]["provides"][0] == {
        "kind": "scorers",
        "name": "words_f1",
        "distribution": "agentrl-good",
        "version": "0.1.0",
        "path": "agentrl_good.f1:score",
        "summary": "token F1 in [0, 1]",
    }


def test_list_of_one_kind(cli):
    table = rows(cli("plugins", "list", "--kind", "scorers")[1])
    assert table[0] == ["NAME", "PLUGIN", "VERSION", "PATH", "SUMMARY"]
    assert ["exact_match", "agentrl-core"] in [row[:2] for row in table[1:]]
    samples = {"agentrl-clash", "agentrl-direct", "agentrl-good"}
    assert [row[:2] for row in table[1:] if row[1] in samples] == [
        ["gsm8k", "agentrl-clash"],
        ["gsm8k", "agentrl-direct"],
        ["words_f1", "agentrl-good"],
    ]
    listed = json.loads(cli("plugins", "list", "--kind", "scorers", "--json")[1])
    assert [item["path"] for item in listed if item["name"] == "gsm8k"] == ["agentrl_clash:score", "gsm8k_scorer:score"]


def test_an_unknown_kind_is_refused_with_the_nearest(cli):
    code, _, err = cli("plugins", "list", "--kind", "scorer")
    assert code == 2
    assert err.startswith("error: --kind: no kind 'scorer' (did you mean scorers?); kinds are workflows, scorers, ")


def test_show_has_components_hooks_and_range(cli):
    code, out, _ = cli("plugins", "show", "agentrl_good")
    assert code == 0
    assert rows(out) == [
        ["agentrl-good 0.1.0: ok, declares agentrl-core<0.2,>=0.1"],
        ["scorers", "words_f1", "agentrl_good.f1:score", "token F1 in [0, 1]"],
        ["trackers", "tally", "agentrl_good.tally:Tally", "counts steps"],
        ["commands", "greet", "agentrl_good.commands:greet"],
        ["hooks", "run_started"],
    ]


def test_show_has_the_whole_traceback_of_a_broken_package(cli, sample_site):
    code, out, _ = cli("plugins", "show", "agentrl-broken")
    assert code == 0
    assert f'File "{sample_site}/agentrl_broken/__init__.py", line 3' in out
    assert out.endswith("ModuleNotFoundError: No module named 'sglang_that_is_not_here'\n")
    shown = json.loads(cli("plugins", "show", "agentrl-broken", "--json")[1])
    assert (shown["status"], shown["traceback"].splitlines()[0]) == ("error", "Traceback (most recent call last):")


def test_show_of_an_unknown_package_names_the_nearest(cli):
    code, _, err = cli("plugins", "show", "agentrl-god")
    assert (code, err) == (
        2,
        "error: no package 'agentrl-god' that plugs into agentrl is installed (did you mean agentrl-good?)\n",
    )


def test_check_passes_sound_packages_and_fails_others(cli):
    assert cli("plugins", "check", "agentrl-good")[:2] == (0, "agentrl-good 0.1.0: ok\n")
    code, out, _ = cli("plugins", "check", "agentrl-direct")
    assert (code, out.splitlines()[0]) == (0, "agentrl-direct 0.5.0: ok")
    assert cli("plugins", "check", "agentrl-newer")[:2] == (
        1,
        f"agentrl-newer 0.4.0: failed\n  failed to load: {NEWER}\n",
    )
    code, out, _ = cli("plugins", "check", "agentrl-clash")
    assert code == 1
    assert "there is no kind 'scorer' (did you mean scorers?)" in out


def test_check_without_the_conformance_kit_says_where_it_comes_from(cli, monkeypatch):
    monkeypatch.setenv("AGENTRL_BLOCK_PLUGINS", "agentrl-testing")
    code, _, err = cli("plugins", "check")
    assert code == 2
    assert re.fullmatch(r"error: `agentrl plugins check` needs a package: .*pip install agentrl-testing\n", err)


def test_check_advises_authors_without_failing_them(cli, sample_site, tmp_path, monkeypatch):
    folder = tmp_path / "agentrl_bare-0.1.0.dist-info"
    folder.mkdir()
    metadata = "Metadata-Version: 2.4\nName: agentrl-bare\nVersion: 0.1.0\nRequires-Dist: agentrl-core<0.2,>=0.1\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    (folder / "entry_points.txt").write_text("[agentrl.scorers]\nbare = bare_scorer:score\n", encoding="utf-8")
    (tmp_path / "bare_scorer.py").write_text("def score(request): return 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli("plugins", "check", "agentrl-bare")[:2] == (
        0,
        (
            "agentrl-bare 0.1.0: ok\n  note: has no summary: write project.description\n"
            "  note: its README does not show how to name bare\n"
        ),
    )


def test_check_of_all_packages_leaves_blocked_ones_out(cli, monkeypatch):
    monkeypatch.setattr("agentrl_testing.plugins.plugin_problems", lambda package, registry: [])
    monkeypatch.setenv("AGENTRL_LOAD_PLUGINS", "agentrl-good,agentrl-testing")
    code, out, _ = cli("plugins", "check")
    assert code == 0
    assert "agentrl-good 0.1.0: ok" in out.splitlines()
    assert "agentrl-newer 0.4.0: is blocked by AGENTRL_LOAD_PLUGINS" in out.splitlines()


def test_help_lists_the_commands_of_packages_without_importing_them(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert ["greet", "Provided by agentrl-good."] in rows(out)
    assert ["run", "Train an agent from a config file."] in rows(out)
    assert "agentrl_good.commands" not in sys.modules


def test_commands_of_the_kit_stand_below_plugins_alone(cli):
    below = [row[0] for row in rows(cli("plugins", "--help")[1]) if row]
    assert [name for name in ("list", "show", "check", "new") if name not in below] == []
    assert "plugins-" not in cli("--help")[1]


@pytest.mark.parametrize(
    "command", ["", "run", "doctor", "config", "config check", "plugins", "plugins list", "trace show", "runs", "greet"]
)
def test_every_command_has_a_short_option_for_its_help(cli, command):
    code, out, _ = cli(*command.split(), "-h")
    assert (code, out) == (0, cli(*command.split(), "--help")[1])
    assert out.split()[:2] == ["Usage:", "agentrl"]


def test_a_command_of_a_package_runs(cli):
    assert cli("greet", "otter") == (0, "hello otter\n", "")


def test_an_unknown_command_names_the_nearest(cli):
    code, out, err = cli("grete")
    assert (code, out) == (2, "")
    assert err.startswith("error: no command named 'grete' (did you mean greet?)")
    assert "plugins-" not in cli("eval")[2]
