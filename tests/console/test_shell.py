"""The frame of every page: loading, signing in, and a gateway that goes away and comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from playwright.sync_api import Page, expect

from gateway.admin.console.routes import STATIC
from gateway.cli import words
from gateway.config import User, token_hash
from tests.console.conftest import NARROW, WIDE, Console, Show, Start
from tests.console.npm import FOLDER
from tests.gateway.admin.conftest import HASH
from tests.support.client import Client
from tests.support.identity import ScriptedProvider
from tests.support.messages import data
from tests.support.running import RunningGateway

# --- The frame of every page ----------------------------------------------------------------------------------------

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
"""The compressed size of the first page with everything that it loads."""


def transferred(page: Page) -> dict[str, int]:
    """Bytes that the page took from the network, by address; 0 for files from the browser's cache."""
    found: list[list[Any]] = page.evaluate(
        """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
            .map((entry) => [entry.name, entry.transferSize])"""
    )
    return {name: int(size) for name, size in found}


def test_the_first_page_is_small_and_is_loaded_once(console: Console) -> None:
    """The compressed size is bounded. A reload requests no file again, as the addresses contain the version."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    found = transferred(page)
    assert len([size for size in found.values() if size > 0]) > 10
    assert sum(found.values()) < MOST_BYTES
    console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    files = {name: size for name, size in transferred(page).items() if "/console/" in name}
    assert len(files) > 10
    assert {name for name, size in files.items() if size > 0} == set()


def sign_in(console: Console, name: str, password: str = "secret") -> None:
    """Fill in the form and submit it."""
    page = console.page
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def sign_in_by_token(console: Console, token: str) -> None:
    """The same with the form for tokens."""
    console.page.get_by_role("button", name="Token").click()
    console.page.get_by_label("Token").last.fill(token)
    console.page.get_by_role("button", name="Sign in").click()


def test_a_user_signs_in_and_out(start: Start, show: Show) -> None:
    """A wrong password is refused in words; a session survives a reload of the page."""
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
    # Also with a token from `rewind new-token`.
    sign_in_by_token(console, "ann-s-token")
    expect(page.get_by_title("Signed in as ann")).to_be_visible()


def test_a_person_signs_in_at_an_identity_provider(start: Start, show: Show) -> None:
    """
    A button leads to the provider and back, with the rights of the token; if the provider refuses, a page says so.
    """
    with ScriptedProvider() as provider:
        refused = {"error": "access_denied"}

        def authorize(handler: Any) -> None:
            url = urlsplit(handler.path)
            query = dict(parse_qsl(url.query))
            code = {"code": provider.sign_in(url.geturl(), scope="administer:queue://*")}
            back = {**(refused or code), "state": query["state"]}
            handler.say(b"", 303, Location=f"{query['redirect_uri']}?{urlencode(back)}")

        provider.answers["/authorize"] = authorize
        settings = provider.settings(client_id="console", rights_claim="scope")
        console = show(start(identity_providers=(settings,)))
        page = console.load()
        there = page.get_by_role("link", name=f"Sign in at {urlsplit(provider.issuer).netloc}")
        there.click()
        expect(page.get_by_text("access_denied")).to_be_visible()
        refused = {}
        console.load()
        there.click()
        expect(page.get_by_title("Signed in as ann")).to_be_visible()
        console.open("endpoints")
        expect(page.get_by_role("heading", name="Endpoints")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        # The window visited the provider twice, and the page itself sent no request there.
        there_at = f"a request to {provider.issuer}/authorize?"
        assert [fault.startswith(there_at) for fault in console.faults] == [True, True]
        console.faults.clear()


def test_a_session_that_ends_asks_to_sign_in_again(start: Start, show: Show) -> None:
    """After signing in again the same page is shown."""
    gateway = start(users=USERS)
    console = show(gateway)
    page = console.load()
    sign_in(console, "ann")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    address = page.url
    gateway.call(lambda running: running.users.reload(running.settings.__class__(users={"eve": User()})))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    gateway.call(lambda running: running.users.reload(running.settings))
    sign_in(console, "ann")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert page.url == address


def test_a_second_window_that_signs_in_as_another_is_noticed(start: Start, show: Show) -> None:
    """An action in the first window is refused, and the window then shows the name of the new user."""
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


def test_a_gateway_that_goes_away_comes_back(console: Console, gateway: RunningGateway) -> None:
    """The page says so, keeps its content, and continues by itself; without users nobody has to sign in."""
    page = console.load()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    gateway.stop()
    expect(page.get_by_text("The gateway does not answer")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert console.violations() == []
    gateway.start()
    expect(page.get_by_text("The gateway answers again")).to_be_visible()
    expect(page.get_by_text("The gateway does not answer")).to_have_count(0)


def test_a_page_cannot_ask_elsewhere_and_an_attempt_is_noticed(console: Console) -> None:
    """The page's policy blocks other hosts and scripts; the fixture of these tests would report the attempts."""
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


# --- Every page, light and dark, wide and narrow --------------------------------------------------------------------

DETAILS = (
    *(
        f"#/default/endpoints/queues/q?tab={tab}"
        for tab in ("consumers", "messages", "subscriptions", "limits")
    ),
    "#/default/endpoints/queues/q?tab=messages&msg=1",
    "#/default/endpoints/topicEndpoints/te?tab=subscriptions",
    "#/default/clients/%231",
    "#/default/clients/%23999",
    "#/default/log?msg=1",
)
"""Pages about a single thing."""

OF_COLOURS = ("color-contrast", "link-in-text-block")
"""axe rules about colours, the only difference of the dark pages."""

GROUND = "getComputedStyle(document.body).backgroundColor"


def pages_of(console: Console) -> list[tuple[str, str]]:
    """Titles and addresses of the pages in the navigation."""
    links = console.page.get_by_role("navigation", name="Pages").locator("a").all()
    return [(link.inner_text(), link.get_attribute("href") or "") for link in links]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_is_for_everybody(
    show: Show, gateway: RunningGateway, client: Client, size: tuple[int, int]
) -> None:
    """No axe violations and no overflow, in both sizes and light and dark, with a gateway that has some content."""
    client.sender("q").send_all([data(i) for i in range(20)])
    client.sender("topic://a/b").send_all([data(i) for i in range(20)])
    client.receiver("q")
    client.receiver("topic://a/>", name="te", durable=True)
    wide = show(gateway)
    wide.load()
    expect(wide.page.get_by_role("navigation", name="Pages")).to_be_visible()
    pages = pages_of(wide)
    assert pages
    console = show(gateway, size)
    found = {}
    for title, address in [*pages, *((address, address) for address in DETAILS)]:
        page = console.page
        page.goto(f"{console.url}/{address}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        expect(page.get_by_text("Loading…")).to_have_count(0)
        problems = console.violations()
        light = page.evaluate(GROUND)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(GROUND) != light
        problems += console.violations(*OF_COLOURS)
        page.emulate_media(color_scheme="light")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            problems.append(f"{over} pixels hang over")
        if problems:
            found[title] = problems
    assert found == {}


# --- Numbers and times in words -------------------------------------------------------------------------------------

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
TIME_MS = 1_794_528_123_456


def test_both_say_the_same(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console and the command line write all values alike; times are in the reader's zone, with their age."""
    console.load()
    monkeypatch.setenv("TZ", "UTC")
    ages = (TIME_MS, TIME_MS + 3 * MINUTE), (TIME_MS, TIME_MS - 90 * SECOND)
    shorter = (0, 5, 999, SECOND, 61 * SECOND, MINUTE)
    durations = (*shorter, 2 * HOUR + 5 * MINUTE, 11 * HOUR, DAY, 9 * DAY + HOUR, 800 * DAY)
    sizes = (0, 1, 999, 1_023, 1_024, 1_536, 1 << 20, (1 << 20) - 1, 1.5 * (1 << 30), 1 << 42)
    texts = ("orders/eu", "a\nb", "a\tb", "\u202ereversed", "\u2028", "\U000e0001", "\x07", "ä 漢")
    called: tuple[tuple[str, Any, list[tuple[Any, ...]]], ...] = (
        ("number", words.number, [(one,) for one in (0, 7, 1_234, 1_234_567, 0.5, 1_234.56)]),
        ("size", words.size, [(one,) for one in sizes]),
        ("duration", words.duration, [(one,) for one in durations]),
        ("oneLine", words.one_line, [(one,) for one in texts]),
        ("moment", words.moment, [(TIME_MS,)]),
        ("momentAndAge", words.moment_and_age, list(ages)),
    )
    for name, said, values in called:
        found = console.page.evaluate(
            """async ([name, values]) => {
                const words = await import("/console/words.js");
                return values.map((value) => words[name](...value));
            }""",
            [name, values],
        )
        assert found == [said(*value) for value in values], name


# --- Type checks of the console's scripts by their comments, and of their use of libraries --------------------------


def check(tree: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """TypeScript's result for the scripts in a folder `static`, with the libraries' types."""
    shutil.copy(FOLDER / "tsconfig.json", tree)
    shutil.copytree(FOLDER / "types", tree / "static" / "vendor")
    (tree / "node_modules").symlink_to(modules)
    return subprocess.run(
        ["node", str(modules / "typescript" / "bin" / "tsc"), "--project", str(tree), "--pretty", "false"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_scripts_have_the_types_that_they_say(tmp_path: Path, npm_modules: Path) -> None:
    """In strict mode: null is checked before use, and no type is implicitly any."""
    shutil.copytree(STATIC, tmp_path / "static", ignore=shutil.ignore_patterns("vendor"))
    checked = check(tmp_path, npm_modules)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_wrong_type_is_found(tmp_path: Path, npm_modules: Path) -> None:
    """The check reports a wrong type in a script that uses a library."""
    (tmp_path / "static").mkdir()
    script = 'import { signal } from "./vendor/signals.js";\n/** @type {string} */\nexport const x = signal(1).value;\n'
    (tmp_path / "static" / "x.js").write_text(script)
    checked = check(tmp_path, npm_modules)
    assert checked.returncode != 0
    assert "x.js(3,14): error TS2322" in checked.stdout


def test_the_types_are_of_the_versions_that_are_vendored(npm_modules: Path) -> None:
    """The scripts are checked against the types of the versions that a browser loads."""
    vendored = json.loads((STATIC / "vendor" / "vendored.json").read_text())
    for one in vendored:
        described = json.loads((npm_modules / one["package"] / "package.json").read_text())
        assert described["version"] == one["version"], one["package"]
