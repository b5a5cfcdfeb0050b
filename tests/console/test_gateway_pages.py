"""Clients, users and the configuration in the console."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from gateway.config import User, read, token_hash
from tests.console.conftest import Console, Show, Start
from tests.console.test_shell import sign_in_by_token
from tests.support.client import Client
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.running import RunningGateway


def test_a_client_is_seen_and_disconnected(console: Console, gateway: RunningGateway, client: Client) -> None:
    """With what the gateway holds for it; once it is gone, that is said."""
    client.sender("orders").send_all([data(0)])
    client.receiver("orders")
    page = console.open("clients")
    expect(page.get_by_text("1 connection")).to_be_visible()
    page.get_by_role("button", name=client.connection.container).click()
    expect(page.get_by_role("heading", level=1, name=client.connection.container)).to_be_visible()
    expect(page.get_by_text("Memory held for it")).to_be_visible()
    links = page.get_by_role("table", name="Links")
    expect(links.get_by_role("row").filter(has_text="publisher")).to_contain_text("orders")
    expect(links.get_by_role("row").filter(has_text="consumer")).to_contain_text("orders")
    page.get_by_role("button", name="Disconnect…").click()
    assert console.violations() == []
    page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("1 connection closed")).to_be_visible()
    expect(page.get_by_text("It has disconnected")).to_be_visible()
    page.get_by_role("link", name="All clients").click()
    expect(page.get_by_text("Nobody is connected")).to_be_visible()
    console.open("users")
    expect(page.get_by_text("No user is configured")).to_be_visible()


def write(path: Path, data: Path, port: int, more: str = "") -> None:
    """A configuration file."""
    path.write_text(f'data = "{data}"\n{more}\n[[listener]]\nport = 0\n[admin]\nport = {port}\n')


def test_the_configuration_is_shown_and_read_again(tmp_path: Path, show: Show) -> None:
    """With what changed, what could not, and what was wrong, each in words."""
    path, folder, port = tmp_path / "gateway.toml", tmp_path / "data", free_port()
    write(path, folder, port)
    with RunningGateway(read(path)) as gateway:
        console = show(gateway)
        page = console.open("configuration")
        toml = page.get_by_label("Configuration in force")
        expect(toml).to_contain_text("[[listener]]")

        def reload() -> None:
            page.get_by_role("button", name="Reload…").click()
            page.get_by_role("dialog").get_by_role("button", name="Reload").click()

        reload()
        expect(page.get_by_text("Nothing in the file has changed")).to_be_visible()
        write(path, folder, free_port(), "[vpn.default.queue.orders]\nquota_mb = 1024")
        reload()
        expect(page.get_by_text("1 setting changed")).to_be_visible()
        expect(page.get_by_text("cannot change while the gateway runs")).to_be_visible()
        expect(toml).to_contain_text("orders")
        assert console.violations() == []
        page.get_by_label("Find").fill("orders")
        expect(toml).not_to_contain_text("listener")
        write(path, folder, port, "nonsense = 1")
        reload()
        expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
        console.page.close()


def test_a_user_is_asked_about(start: Start, show: Show) -> None:
    """With the rule that decides; who may only look at the gateway reloads nothing."""
    users = {
        "ann": User(token=token_hash("ann-s-token"), global_access="read-only"),
        "ben": User(consume=("topic://a/>", "!topic://a/secret/>")),
    }
    console = show(start(users=users))
    page = console.load()
    sign_in_by_token(console, "ann-s-token")
    page.get_by_role("link", name="Configuration").click()
    expect(page.get_by_label("Configuration in force")).to_be_visible()
    expect(page.get_by_role("button", name="Reload…")).to_have_count(0)
    page.get_by_role("link", name="Users").click()
    page.get_by_role("button", name="ben").click()

    def ask(action: str, address: str) -> Locator:
        page.get_by_label("Action", exact=True).select_option(action)
        page.get_by_label("Address").fill(address)
        page.get_by_role("button", name="Check").click()
        return page.locator(".answer")

    expect(ask("consume", "topic://a/b")).to_contain_text("Yes.")
    expect(page.locator(".answer")).to_contain_text("topic://a/>")
    expect(ask("consume", "topic://a/secret/x")).to_contain_text("No.")
    expect(page.locator(".answer")).to_contain_text("!topic://a/secret/>")
    expect(ask("administer", "log://>")).to_contain_text("No.")
    expect(ask("consume", "nonsense://")).to_contain_text("nonsense")
    assert console.violations() == []
