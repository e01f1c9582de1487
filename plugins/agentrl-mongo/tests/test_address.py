"""Urls get their password from the environment, and no text shows it."""

import pytest

from agentrl_mongo.address import Address, AddressError, database_of


def address(url, password=None):
    return Address.of(url, password=password, password_env="MONGO_PASSWORD")


@pytest.mark.parametrize(
    ("url", "password", "full", "database"),
    [
        ("mongodb://h", None, "mongodb://h", ""),
        ("mongodb://h:1,i:2/runs?replicaSet=a", None, "mongodb://h:1,i:2/runs?replicaSet=a", "runs"),
        ("mongodb+srv://u:p@h/?a=b", None, "mongodb+srv://u:p@h/?a=b", ""),
        ("mongodb://u@h", "p@/", "mongodb://u:p%40%2F@h", ""),
        ("mongodb://u:own@h", "other", "mongodb://u:own@h", ""),
        ("mongodb://h", "unused", "mongodb://h", ""),
        ("mongodb://cert@h/?authMechanism=MONGODB-X509", None, "mongodb://cert@h/?authMechanism=MONGODB-X509", ""),
        ("mongodb://cert@h/?AUTHMECHANISM=mongodb-x509", None, "mongodb://cert@h/?AUTHMECHANISM=mongodb-x509", ""),
        ("mongodb://me@h/?authMechanism=GSSAPI", None, "mongodb://me@h/?authMechanism=GSSAPI", ""),
    ],
)
def test_a_url_is_read(url, password, full, database):
    found = address(url, password)
    assert (found.url, found.database) == (full, database)
    assert "@" not in found.hosts


def test_a_user_without_a_password_is_told_where_to_put_it():
    with pytest.raises(AddressError, match=r"'url' has a user and no password.*MONGO_PASSWORD.*store\.url="):
        address("mongodb://u@h")


@pytest.mark.parametrize("options", ["authmechanism=SCRAM-SHA-256", "authMechanism=PLAIN", "authMechanism=DEFAULT"])
def test_a_mechanism_with_a_password_needs_one(options):
    with pytest.raises(AddressError, match="no password"):
        address(f"mongodb://u@h/?{options}")


def test_names_of_options_are_read_after_the_question_mark_alone():
    assert address("mongodb://u:w=1,journal=0@h/w=2").options == frozenset()
    assert address("mongodb://h/?W=1&journal=false&appName=a=b").options == {"w", "journal", "appname"}


@pytest.mark.parametrize("url", ["mongodb://u:hush@me@h", "http://u:hush@h", "mongodb://u:hu/sh@h", "hush"])
def test_a_url_of_another_form_is_refused_and_not_quoted(url):
    with pytest.raises(AddressError, match="expected mongodb://USER:PASSWORD@HOST") as refusal:
        address(url)
    assert "hu" not in str(refusal.value)


def test_messages_and_representations_have_no_password():
    found = address("mongodb://u:p%40xx@h:1/d")
    assert "xx" not in repr(found)
    assert found.without_secrets("no p@xx, no p%40xx") == "no ***, no ***"


def test_a_database_has_the_name_of_its_run():
    assert database_of("calm-otter-123") == "agentrl-calm-otter-123"
    odd = [database_of(name) for name in ("a.b", "a b", "A-b", "a-b", "x" * 80, "x" * 81)]
    assert len(set(odd)) == len(odd)
    for name in odd:
        assert len(name.encode()) <= 63
        assert not set(name) & set('/\\. "$*<>:|?\0')
        assert name == name.lower()
