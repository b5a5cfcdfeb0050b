"""Stores on other machines in a configuration: what is taken, and that no password of one is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import ConfigError, VpnStore, effective_toml, masked, parse, read, reconcile

URLS = [
    "postgresql://rewind:hunter2@a,b/rewind?target_session_attrs=read-write",
    "postgres://rewind:hun@ter2@a/rewind",
    "postgresql://rewind:hun:ter2@a/rewind",
    "postgresql://rewind:hun/ter2@a/rewind",
    "postgresql://a/rewind?user=rewind&password=hunter2",
    "postgresql://a/rewind?sslpassword=hunter2&user=rewind",
]


def table(url: str, more: str = "") -> str:
    """The table of a store."""
    return f'[vpn.default.store]\nurl = "{url}"\n{more}'


@pytest.mark.parametrize("url", URLS)
def test_a_password_is_not_shown(url: str) -> None:
    """Not in the settings in effect, nor in what a reload tells; all else is, and `--show-secrets` has it all."""
    settings = parse(table(url))
    shown = effective_toml(settings)
    assert "hun" not in shown and "ter2" not in shown
    assert "***" in shown and "rewind" in shown
    assert parse(effective_toml(settings, show_secrets=True)) == settings
    (told,) = reconcile(
        settings, parse(table(url.replace("rewind?", "other?").replace("/rewind", "/other")))
    ).refused
    assert "hun" not in str(told) and "ter2" not in str(told) and "***" in str(told)


def test_what_has_no_password_is_as_it_is() -> None:
    """An address without one, or with a user's name alone, is told whole."""
    for url in ("postgresql://a,b/rewind", "postgresql://rewind@a:5433/rewind?connect_timeout=5"):
        assert masked(url) == url


def test_texts_around_a_url_stay() -> None:
    """A sentence with two of them loses their passwords and nothing else."""
    told = masked("cannot open postgresql://u:one@a/x: postgresql://u:two@b/x refused me@home")
    assert told == "cannot open postgresql://u:***@a/x: postgresql://u:***@b/x refused me@home"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (table("mysql://u:secret@a/x"), "no URL of a store"),
        (table("postgresql://u:secret@a"), "names no database"),
        ('[vpn.default]\nstore = "postgresql://u:secret@a/x"', "should be a table"),
        ("[vpn.default.store]\nrequire_standby = true", "vpn.default.store.url is missing"),
        (table("postgresql://a/x", 'advertise = "amqp://b:5672"'), "without a scheme"),
        (table("postgresql://a/x", 'advertise = "0.0.0.0:5672"'), "nothing that clients can connect to"),
        (table("postgresql://a/x", "lease_seconds = 1"), "greater than or equal to 2"),
        (table("postgresql://u:secret@a/x", 'password_file = "p"'), "stands beside a password"),
    ],
)
def test_what_is_wrong_is_told_without_the_password(text: str, told: str) -> None:
    """Each mistake has a sentence."""
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert told in str(error.value) and "secret" not in str(error.value)


def test_a_password_file_has_to_be_there(tmp_path: Path) -> None:
    """It is read at the start, so that a mistake is known then."""
    file = tmp_path / "rewind.toml"
    file.write_text(table("postgresql://a/x", f'password_file = "{tmp_path / "password"}"'))
    with pytest.raises(ConfigError, match="password_file cannot be used"):
        read(file)
    (tmp_path / "password").write_text("secret\n")
    store = read(file).settings.vpns["default"].store
    assert store is not None and store.password_file == tmp_path / "password"


def test_only_what_is_asked_for_again_changes_while_it_runs() -> None:
    """Whether a standby is required does; where the store is, and what it was opened with, is for the next start."""
    before = parse(table("postgresql://a/x"))
    store = before.vpns["default"].store
    assert store is not None
    fixed = VpnStore(
        url="postgresql://b/x",
        password_file=Path("p"),
        read_url="postgresql://c/x",
        lease_seconds=9,
        advertise="d:1",
        require_standby=True,
    )
    vpn = replace(before.vpns["default"], store=fixed)
    found = reconcile(before, replace(before, vpns={"default": vpn}))
    assert {difference.path.rpartition(".")[2] for difference in found.refused} == {
        "url",
        "password_file",
        "read_url",
        "lease_seconds",
        "advertise",
    }
    assert [str(difference) for difference in found.applied] == [
        "vpn.default.store.require_standby: false became true"
    ]
    assert found.settings.vpns["default"].store == replace(store, require_standby=True)


@pytest.mark.parametrize("comes", [True, False])
def test_a_store_neither_comes_nor_goes_while_it_runs(comes: bool) -> None:
    """The messages would stay where they are."""
    without, with_it = parse(""), parse(table("postgresql://a/x"))
    before, after = (without, with_it) if comes else (with_it, without)
    found = reconcile(before, after)
    assert found.settings == before and "is where the messages are" in str(found.refused[0])
