import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.tools.entries import common_options, name_clashes, own_part


def test_common_options_are_not_those_of_the_server():
    component = Component("mcp", {"name": "files", "prefix": "f_", "timeout_s": 5, "url": "http://x"})
    own, arguments = own_part(component, "tools.servers.3", "here")
    assert (own, arguments) == (Component("mcp", {"url": "http://x"}), {"name": "files"})
    options = common_options(component, 3)
    assert (options.name, options.prefix, options.timeout_s) == ("files", "f_", 5)


def test_a_server_without_a_name_is_called_by_its_use_and_number():
    assert common_options(Component("mcp"), 0).name == "mcp-1"
    assert common_options(Component("my/tools.py:Server"), 1).name == "my_tools_py_Server-2"


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"prefix": "a b"}, {"name": 3}])
def test_wrong_common_options_name_their_place(options):
    with pytest.raises(ConfigError, match=rf"^here.*{next(iter(options))}: "):
        own_part(Component("mcp", options), "tools.servers.0", "here")


def test_two_servers_of_one_name_are_found():
    servers = [Component("mcp", {"name": "a"}), Component("functions"), Component("mcp", {"name": "a"})]
    assert list(name_clashes(servers, lambda key: f"c.yaml: {key}")) == [
        "c.yaml: tools.servers.2: the name 'a' is also that of tools.servers.0; give one of the servers another `name`"
    ]
