import sys
from pathlib import Path

import pytest

from agentrl_core.errors import PluginError
from agentrl_core.plugins import references
from agentrl_core.plugins.references import is_reference, one_line, resolve, user_folders
from agentrl_testing.plugins import isolated_plugins


@pytest.fixture(autouse=True)
def clean_import_path():
    with isolated_plugins(core=False):
        yield


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pkg.mod:Attr", True),
        ("agent.py:Agent", True),
        ("agent.py", True),
        ("pkg.mod.Attr", True),
        ("gsm8k", False),
        ("agentrl-direct/gsm8k", False),
        ("my.dist/gsm8k", False),
    ],
)
def test_a_reference_is_told_from_a_name(text, expected):
    assert is_reference(text) is expected


def test_module_and_attr_of_an_installed_package():
    found = resolve("json.decoder:JSONDecoder")
    assert (found.value.__name__, found.path) == ("JSONDecoder", "json.decoder:JSONDecoder")
    assert Path(found.file).name == "decoder.py"


def test_nested_attributes_after_the_colon():
    assert resolve("pathlib:Path.cwd").value() == Path.cwd()


def test_the_dotted_form_finds_classes_and_their_members(tmp_path, write):
    write("refs_pkg/__init__.py", "")
    write("refs_pkg/mod.py", "class Agent:\n    class Config: pass\n")
    assert resolve("refs_pkg.mod.Agent", [tmp_path]).path == "refs_pkg.mod:Agent"
    assert resolve("refs_pkg.mod.Agent.Config", [tmp_path]).path == "refs_pkg.mod:Agent.Config"


def test_user_modules_are_found_beside_the_config_and_in_the_working_directory(tmp_path, write, monkeypatch):
    write("here/refs_cwd.py", "value = 'cwd'")
    write("config/refs_base.py", "value = 'base'")
    monkeypatch.chdir(tmp_path / "here")
    folders = user_folders(tmp_path / "config")
    assert folders == [tmp_path / "config", tmp_path / "here"]
    assert [resolve(f"{name}:value", folders).value for name in ("refs_cwd", "refs_base")] == ["cwd", "base"]


def test_the_folder_of_the_config_goes_first_however_often_it_is_asked(tmp_path, write, monkeypatch):
    write("here/refs_twice.py", "value = 'cwd'")
    write("config/refs_twice.py", "value = 'base'")
    monkeypatch.chdir(tmp_path / "here")
    folders = user_folders(tmp_path / "config")
    assert [resolve("refs_twice:value", folders).value for _ in range(2)] == ["base", "base"]


def test_a_file_is_relative_to_the_first_folder_that_has_it(tmp_path, write):
    write("config/sub/refs_file.py", "class Agent: pass")
    found = resolve("sub/refs_file.py:Agent", [tmp_path / "config", tmp_path])
    assert (found.path, found.file) == ("refs_file:Agent", str(tmp_path / "config/sub/refs_file.py"))


def test_a_file_imports_its_siblings_and_runs_once(tmp_path, write):
    write("refs_tools.py", "import refs_agent\nused = refs_agent.Agent")
    write("refs_agent.py", "runs = globals().get('runs', 0) + 1\nclass Agent: pass\nimport refs_tools\n")
    agent = resolve("refs_agent.py:Agent", [tmp_path]).value
    assert resolve("refs_tools.py:used", [tmp_path]).value is agent
    assert resolve("./refs_agent.py:Agent", [tmp_path]).value is agent
    assert resolve("refs_agent:Agent", [tmp_path]).value is agent
    assert resolve("refs_agent.py:runs", [tmp_path]).value == 1


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path, write):
    write("a/refs_same.py", "value = 'a'")
    write("b/refs_same.py", "value = 'b'")
    assert [resolve("refs_same.py:value", [tmp_path / name]).value for name in "ab"] == ["a", "b"]


def test_a_file_named_as_a_standard_module_does_not_take_its_place(tmp_path, write):
    write("queue.py", "value = 'mine'")
    assert resolve("queue.py:value", [tmp_path]).value == "mine"
    assert not hasattr(sys.modules.get("queue"), "value")


def test_a_module_of_another_folder_is_never_handed_out_in_silence(tmp_path, write):
    write("a/refs_copy.py", "value = 'a'")
    write("b/refs_copy.py", "value = 'b'")
    assert resolve("refs_copy:value", [tmp_path / "a"]).value == "a"
    with pytest.raises(PluginError, match=r"'refs_copy' is already imported from .*/a/refs_copy\.py, so .*/b/"):
        resolve("refs_copy:value", [tmp_path / "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("refs_nowhere:Agent", r"there is no module 'refs_nowhere': no 'refs_nowhere' in /.*, nor among the installed"),
        ("refs_nowhere.Agent", r"there is no module 'refs_nowhere'"),
        ("json.nowhere:Agent", r"there is no module 'json\.nowhere': json \(.*__init__\.py\) has no 'nowhere'"),
        ("json.decoder.nowhere:x", r"there is no module 'json\.decoder\.nowhere': json\.decoder \(.*\) has no"),
        ("json:JSONDecodr", r"module json \(.*\) has no 'JSONDecodr' \(did you mean JSONDecoder\?\)"),
        ("json.decoder.JSONDecodr", r"module json\.decoder \(.*\) has no 'JSONDecodr' \(did you mean JSONDecoder\?\)"),
        ("json:JSONDecoder.decod", r"json:JSONDecoder \(.*\) has no 'decod' \(did you mean decode\?\)"),
        ("nowhere.py:Agent", r"there is no file /.*/nowhere\.py"),
        ("agent.py", r"'agent\.py' names a file; name the object in it: agent\.py:NAME"),
        ("not a module:x", r"'not a module' is not the dotted name of a module"),
        (":x", r"'' is not the dotted name of a module"),
    ],
)
def test_what_is_missing_is_said_with_where_it_was_looked_for(text, message, tmp_path):
    with pytest.raises(PluginError, match=message):
        resolve(text, [tmp_path])


def test_a_missing_file_names_both_folders(tmp_path):
    with pytest.raises(PluginError, match=f"no file {tmp_path}/a/x.py or {tmp_path}/b/x.py"):
        resolve("x.py:A", [tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("text", ["refs_broken:Agent", "refs_broken.Agent", "refs_broken.py:Agent"])
def test_an_import_error_inside_the_users_module_is_its_own(text, tmp_path, write):
    file = write("refs_broken.py", "\n\nimport a_package_that_is_not_here\n")
    with pytest.raises(
        PluginError, match=r"importing .*refs_broken.* failed: ModuleNotFoundError: No module named"
    ) as info:
        resolve(text, [tmp_path])
    assert "'a_package_that_is_not_here'" in str(info.value)
    assert f"(at {file}:3); install the package that has" in str(info.value)
    assert isinstance(info.value.__cause__, ModuleNotFoundError)
    assert info.value.__cause__.name == "a_package_that_is_not_here"
    assert "refs_broken" not in sys.modules


def test_a_missing_name_imported_by_the_users_module_is_its_own(tmp_path, write):
    write("refs_partial.py", "from json import no_such_name")
    with pytest.raises(PluginError, match="failed: ImportError: cannot import name 'no_such_name'"):
        resolve("refs_partial:Agent", [tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:", r"SyntaxError: invalid syntax \(refs_raises\.py, line 1\): `def broken\(:`"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivision"),
    ],
)
def test_whatever_a_module_raises_names_the_module(text, message, tmp_path, write):
    write("refs_raises.py", text)
    with pytest.raises(PluginError, match=rf"importing .*refs_raises\.py failed: {message}"):
        resolve("refs_raises.py:x", [tmp_path])


def test_an_import_error_of_a_lazy_attribute_is_its_own(tmp_path, write):
    write("refs_lazy.py", "def __getattr__(name):\n    import a_package_that_is_not_here\n")
    with pytest.raises(PluginError, match="importing 'Agent' of module refs_lazy failed: ModuleNotFoundError"):
        resolve("refs_lazy:Agent", [tmp_path])


def test_a_package_whose_parent_fails_is_not_called_missing(tmp_path, write):
    write("refs_parent/__init__.py", "raise RuntimeError('no device')")
    write("refs_parent/mod.py", "")
    with pytest.raises(PluginError, match="importing module refs_parent failed: RuntimeError: no device"):
        resolve("refs_parent.mod:x", [tmp_path])


def test_one_line_keeps_the_first_line():
    assert one_line(ValueError("a\nb")) == "ValueError: a"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_missing_library_is_named_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(references._PACKAGES, "agents_sdk_of_nobody", "agents-of-nobody")
    (tmp_path / "agent.py").write_text("import agents_sdk_of_nobody.client\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"No module named 'agents_sdk_of_nobody'.*; pip install agents-of-nobody$"):
        resolve("agent.py:Agent", [tmp_path])


def test_a_missing_module_of_unknown_origin_is_no_command_to_install_it(tmp_path):
    (tmp_path / "agent.py").write_text("import my_helperz\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"install the package that has 'my_helperz' beside agentrl, in /") as caught:
        resolve("agent.py:Agent", [tmp_path])
    assert "pip install my" not in str(caught.value)


def test_a_missing_part_of_an_installed_package_has_no_such_advice(tmp_path):
    (tmp_path / "agent.py").write_text("import json.nowhere\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"\(at .*agent.py:1\)$"):
        resolve("agent.py:Agent", [tmp_path])
