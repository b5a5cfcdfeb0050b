"""What is around every page: loading, signing in, the gateway going away and coming back."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from amqp_ext.sasl.passwords import hash_password
from gateway.config import User, token_hash
from tests.console.conftest import Console, Show, Start
from tests.support.running import RunningGateway

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)
USERS = {
    "ann": User(
        password=HASH,
        token=token_hash("ann-s-token"),
        administer=("queue://*", "topic://>", "log://>"),
        global_access="read-write",
    ),
    "ben": User(password=HASH, administer=("queue://his",)),
}

MOST_BYTES = 300_000
"""Of the first page with all that it loads, as it is sent."""


def transferred(page: Page) -> dict[str, int]:
    """Bytes that came over the wire for the page as it is, by address; 0 for what the browser had."""
    found: list[list[Any]] = page.evaluate(
        """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
            .map((entry) => [entry.name, entry.transferSize])"""
    )
    return {name: int(size) for name, size in found}


def test_the_first_page_is_small(console: Console) -> None:
    """Its files together, compressed as they come over the wire."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    found = transferred(page)
    assert len([size for size in found.values() if size > 0]) > 10
    assert sum(found.values()) < MOST_BYTES


def test_a_page_that_is_loaded_again_asks_for_no_script(console: Console) -> None:
    """The browser has them, and knows that they are of this version."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    files = {name: size for name, size in transferred(page).items() if "/console/" in name}
    assert len(files) > 10
    assert {name for name, size in files.items() if size > 0} == set()


def sign_in(console: Console, name: str, password: str = "secret") -> None:
    """Fill in the form, as a person does."""
    page = console.page
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_a_user_signs_in_and_out(start: Start, show: Show) -> None:
    """A wrong password is said in words; what comes after the right one stays over a reload of the page."""
    console = show(start(users=USERS))
    page = console.load()
    sign_in(console, "ann", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    assert console.violations() == []
    sign_in(console, "ann")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    expect(page.get_by_title("Signed in as ann")).to_be_visible()
    page.reload()
    expect(page.get_by_title("Signed in as ann")).to_be_visible()
    assert page.evaluate("document.cookie") == "", "no script can read the session"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_token_signs_in(start: Start, show: Show) -> None:
    """As `rewind new-token` wrote it."""
    console = show(start(users=USERS))
    page = console.load()
    page.get_by_role("button", name="Token").click()
    page.get_by_label("Token").last.fill("ann-s-token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_title("Signed in as ann")).to_be_visible()


def test_a_session_that_ends_asks_to_sign_in_again(start: Start, show: Show) -> None:
    """The page is where it was after that."""
    gateway = start(users=USERS)
    console = show(gateway)
    page = console.load()
    sign_in(console, "ann")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    address = page.url
    gateway.call(lambda running: running._users.reload(running.settings.__class__(users={"eve": User()})))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    gateway.call(lambda running: running._users.reload(running.settings))
    sign_in(console, "ann")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert page.url == address


def test_a_second_window_that_signs_in_as_another_is_noticed(start: Start, show: Show) -> None:
    """What is done in the first is refused, and it says then who is signed in."""
    console = show(start(users={**USERS, "eve": USERS["ann"]}))
    page = console.load()
    sign_in(console, "ann")
    expect(page.get_by_title("Signed in as ann")).to_be_visible()
    console.open("endpoints")
    expect(page.get_by_role("button", name="New…")).to_be_visible()
    other = console.context.new_page()
    other.goto(console.url)
    said = {"userName": "eve", "password": "secret"}
    status = other.evaluate(
        """async (said) => {
            const headers = {"Content-Type": "application/json"};
            return (await fetch("/session", {method: "POST", body: JSON.stringify(said), headers})).status;
        }""",
        said,
    )
    assert status == 200
    page.get_by_role("button", name="New…").click()
    page.get_by_label("Endpoint name").fill("q")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("X-CSRF-Token")
    expect(page.get_by_title("Signed in as eve")).to_be_visible()


def test_nobody_signs_in_where_nobody_needs_to(console: Console) -> None:
    """The first page is there at once."""
    page = console.load()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)


def test_a_gateway_that_goes_away_comes_back(console: Console, gateway: RunningGateway) -> None:
    """That is said, what was seen stays, and the page goes on by itself."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    gateway.stop()
    expect(page.get_by_text("The gateway does not answer")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert console.violations() == []
    gateway.start()
    expect(page.get_by_text("The gateway answers again")).to_be_visible()
    expect(page.get_by_text("The gateway does not answer")).to_have_count(0)


def test_a_page_cannot_ask_elsewhere_and_an_attempt_is_noticed(console: Console) -> None:
    """Its policy keeps a script from it; and these tests would fail by it."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert console.faults == []
    elsewhere = "http://127.0.0.1:1/x"
    assert (
        page.evaluate("(url) => fetch(url).then(() => 'sent', (error) => error.name)", elsewhere)
        == "TypeError"
    )
    page.evaluate("(url) => { const image = new Image(); image.src = url; }", elsewhere)
    page.evaluate(
        "() => { const script = document.createElement('script'); script.text = 'window.ran = 1'; "
        "document.body.append(script); }"
    )
    assert page.evaluate("window.ran") is None
    blocked = [fault for fault in console.faults if "Content Security Policy" in fault]
    assert len(blocked) >= 2, console.faults
    console.faults.clear()
