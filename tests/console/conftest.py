"""A browser that opens the console of a gateway: Debian's Chromium, or what ``$CHROMIUM`` names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from gateway.config import AdminListener
from gateway.vpn.runtime import REFUSALS
from tests.console import npm
from tests.support.client import Client
from tests.support.ports import free_port
from tests.support.running import RunningGateway, settings_for

WITHOUT: Final = (
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "WebUIOmniboxPopup",
    # From Playwright's own list, which this list replaces.
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "OptimizationHints",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
)
"""Features that the browser leaves out. The pages of its address bar take most of the work of a short test."""

ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(WITHOUT)}",
)
"""Arguments for a browser that sends no requests of its own. It shows only our page."""

WIDE: Final = (1280, 800)
NARROW: Final = (390, 844)
"""In pixels: a laptop's window, and a telephone."""

WAIT_MS: Final = 20_000
"""How long the page may take to show what is expected: long, because test machines are busy."""

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def npm_modules() -> Path:
    """The folder of npm's packages."""
    return npm.install()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a process; each test has a context of its own in it."""
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    assert path, "there is no Chromium: ./run test installs it, or $CHROMIUM names one"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, chromium_sandbox=False)
        yield browser
        browser.close()


class Console:
    """
    The console in a window of the browser.

    Args:
        url: The URL of the administration.
    """

    def __init__(self, context: BrowserContext, url: str, modules: Path) -> None:
        self.url = url
        self.context = context
        self._axe = modules / "axe-core" / "axe.min.js"
        self.faults: list[str] = []
        """What no page may do: an error in a script, a violation of its policy, a request to another host."""
        self.asked: list[str] = []
        """The addresses of all requests."""
        context.set_default_timeout(WAIT_MS)
        context.on("request", self._request)
        self.page: Page = context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(f"{error.name}: {error.message}"))
        self.page.on("console", self._said)

    def open(self, *names: str, vpn: str = "default", query: str = "") -> Page:
        """Show a page, such as `endpoints`; ``names`` follow it in the address."""
        path = "/".join(quote(name, safe="") for name in (vpn, *names))
        self.page.goto(f"{self.url}/#/{path}{query}")
        return self.page

    def load(self) -> Page:
        """Load the console again at its address without a page."""
        self.page.goto("about:blank")
        self.page.goto(self.url)
        return self.page

    def violations(self, *rules: str) -> list[str]:
        """
        axe's findings about the page as it is: each rule, with the first elements that violate it.

        Args:
            rules: The rules to check; all by default.
        """
        if self.page.evaluate("typeof axe === 'undefined'"):
            self.page.evaluate(self._axe.read_text())  # as the page's policy forbids loading it
        found: list[dict[str, Any]] = self.page.evaluate(
            "async (rules) => (await axe.run(document, rules.length ? {runOnly: rules} : {})).violations",
            list(rules),
        )
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']][:3]}"
            for one in found
        ]

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)
        if not request.url.startswith((self.url, "blob:")) and request.url != "about:blank":
            self.faults.append(f"a request to {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        # A refused request is no fault of the page, which reports it in words.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"{message.type}: {message.text}")


Start = Callable[..., RunningGateway]
Show = Callable[..., Console]


@pytest.fixture(autouse=True)
def nothing_refused() -> None:
    """Refusals are counted per process: here the counts start at zero for each test."""
    REFUSALS.clear()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """Contexts that are closed in reverse order when the test has ended."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(tmp_path: Path, ending: ExitStack) -> Start:
    """Starts a gateway with settings of the test; its administration keeps its port when it starts again."""

    def start(**more: Any) -> RunningGateway:
        admin = more.pop("admin", AdminListener(port=free_port()))
        return ending.enter_context(RunningGateway(settings_for(tmp_path / "data", admin=admin, **more)))

    return start


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway without a configuration file."""
    return start()


@pytest.fixture
def client(gateway: RunningGateway, ending: ExitStack) -> Client:
    """An AMQP client of `gateway`."""
    return ending.enter_context(Client(gateway.url))


@pytest.fixture
def show(browser: Browser, npm_modules: Path, ending: ExitStack) -> Show:
    """Opens a gateway's console in a window; at the end it checks that the page has no ``faults``."""

    def show(gateway: RunningGateway, size: tuple[int, int] = WIDE, scheme: str = "light") -> Console:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
            timezone_id="UTC",
            locale="en-GB",
        )
        ending.callback(_close, context)
        console = Console(context, gateway.call(lambda running: running.admin[0]), npm_modules)
        ending.callback(_check, console)
        return console

    return show


def _close(context: BrowserContext) -> None:
    for page in context.pages:
        page.unroute_all(
            behavior="ignoreErrors"
        )  # its requests may still wait for an answer that is lost with the page
    context.close()


def _check(console: Console) -> None:
    assert console.faults == []


@pytest.fixture
def console(show: Show, gateway: RunningGateway) -> Console:
    """The console of `gateway`."""
    return show(gateway)
