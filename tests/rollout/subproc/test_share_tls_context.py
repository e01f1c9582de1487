"""HTTP clients share one TLS context while agents run, and nothing else does."""

import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import certifi
import httpx
import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls


def context_of(client):
    return client._transport._pool._ssl_context


@pytest.mark.parametrize("make", [httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient])
def test_plain_clients_share_one_context(make):
    with shared_tls():
        first, second = context_of(make()), context_of(make())
        assert first is second
        assert first.verify_mode is ssl.CERT_REQUIRED
        assert first.check_hostname
        assert first.get_ca_certs() or first.cert_store_stats()["x509_ca"] or ssl.get_default_verify_paths().capath
    assert context_of(make()) is not first


def test_clients_of_the_sdks_share_it():
    with shared_tls():
        clients = [AsyncOpenAI(api_key="k"), AsyncOpenAI(api_key="k"), AsyncAnthropic(api_key="k")]
        assert len({id(context_of(client._client)) for client in clients}) == 1


@pytest.mark.parametrize(
    "options",
    [{"verify": False}, {"verify": ssl.create_default_context()}, {"trust_env": False}, {"http2": True}],
    ids=["unverified", "own", "no environment", "http2"],
)
def test_a_client_that_asks_for_something_else_gets_that(options):
    if "http2" in options:
        pytest.importorskip("h2")
    with shared_tls():
        plain, other = context_of(httpx2.Client()), context_of(httpx2.Client(**options))
        assert plain is not other
        assert (other.verify_mode is ssl.CERT_NONE) == (options.get("verify") is False)
        if isinstance(options.get("verify"), ssl.SSLContext):
            assert other is options["verify"]


def test_another_bundle_in_the_environment_is_another_context(tmp_path, monkeypatch):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes())
    with shared_tls():
        plain = context_of(httpx2.Client())
        with monkeypatch.context() as changed:
            changed.setenv("SSL_CERT_FILE", str(bundle))
            assert context_of(httpx2.Client()) is not plain
        assert context_of(httpx2.Client()) is plain


def test_contexts_that_users_make_are_their_own():
    with shared_tls():
        context_of(httpx2.Client())
        assert httpx2.create_ssl_context() is not httpx2.create_ssl_context()
        assert ssl.create_default_context() is not ssl.create_default_context()


def test_it_may_be_nested_and_leaves_nothing_behind():
    import httpx2._transports.default as transports

    before, path = transports.create_ssl_context, list(sys.meta_path)
    with shared_tls():
        with shared_tls():
            inside = context_of(httpx2.Client())
        assert context_of(httpx2.Client()) is inside
        assert transports.create_ssl_context is not before
    assert transports.create_ssl_context is before
    assert sys.meta_path == path


def test_a_library_that_is_imported_later_shares_it_too():
    program = """
        import sys
        from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls
        with shared_tls():
            assert "httpx2" not in sys.modules
            import httpx2, inspect
            import httpx2._transports.default as transports
            contexts = {httpx2.Client()._transport._pool._ssl_context for _ in range(2)}
            print(len(contexts), "def handle_request" in inspect.getsource(transports))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "1 True\n", done.stderr


@pytest.mark.parametrize(("module", "newest"), [(httpx, (0, 28)), (httpx2, (2, 16))])
def test_these_versions_were_read(module, newest):
    installed = tuple(map(int, module.__version__.split(".")[:2]))
    advice = "compare its _transports/default.py with share_tls_context.py, then name the version there and here"
    assert installed <= newest, advice


@pytest.mark.parametrize(
    "changed",
    [
        {"create_ssl_context": lambda verify=True, trust_env=True: ssl.create_default_context()},
        {"create_ssl_context": None},
        {"HTTPTransport": object},
    ],
    ids=["other parameters", "no function", "no http2"],
)
def test_a_release_that_is_built_otherwise_is_left_alone(monkeypatch, changed):
    transports = httpx2._transports.default
    for name, value in changed.items():
        monkeypatch.setattr(transports, name, value)
    before = transports.create_ssl_context
    with shared_tls():
        assert transports.create_ssl_context is before


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_caller_that_is_no_transport_gets_a_context_of_its_own(library):
    with shared_tls():
        make = library._transports.default.create_ssl_context
        assert isinstance(make(), ssl.SSLContext)
        assert make() is not make()
