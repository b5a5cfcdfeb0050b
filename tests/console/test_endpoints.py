"""Endpoints, clients, users and the configuration in the console."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Locator, expect

from amqp_ext.codec import Symbol
from gateway.config import User, Vpn, read, token_hash
from gateway.config.vpn import Queue
from tests.console.conftest import Console, Show, Start
from tests.console.test_shell import USERS, sign_in, sign_in_by_token
from tests.support.administration import Administration
from tests.support.client import Client
from tests.support.messages import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    data,
    message_to,
    section,
)
from tests.support.ports import free_port
from tests.support.running import RunningGateway

# --- Queues and topic endpoints in the console: seen, made, purged, deleted; their subscriptions and limits -----------

EVIL = '<img src=x onerror="window.hurt=1"><script>window.hurt=2</script>'


def test_a_queue_is_found_and_seen(console: Console, gateway: RunningGateway, client: Client) -> None:
    """The list shows a queue's depth and updates it by itself; the queue's own page shows its consumers."""
    client.sender("orders").send_all([data(i) for i in range(3)])
    client.sender("payments").send_all([data(0)])
    page = console.open("endpoints")
    row = page.get_by_role("row", name="orders")
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    client.sender("orders").send_all([data(i) for i in range(4)])
    expect(row.get_by_role("cell").nth(1)).to_have_text("7")
    page.get_by_label("Name").fill("rder")
    expect(page.get_by_role("row", name="payments")).to_have_count(0)
    row.get_by_role("button", name="orders").click()
    expect(page.get_by_role("heading", level=1, name="orders")).to_be_visible()
    expect(page.get_by_text("No consumers")).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="ago)")).to_have_count(1)  # age of the oldest
    receiver = client.receiver("orders", credit=10)
    receiver.take(7)
    consumer = page.get_by_role("table", name="Consumers").get_by_role("row").nth(1)
    expect(consumer).to_contain_text("active")
    expect(consumer.get_by_role("cell").nth(2)).to_have_text("3")
    expect(consumer.get_by_role("cell").nth(3)).to_have_text("7")
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Endpoints")).to_be_visible()


def test_what_waits_for_its_time_is_seen_cancelled_and_delivered(
    console: Console, gateway: RunningGateway, client: Client
) -> None:
    """
    The next due message comes first, with its due time; one message is cancelled, another is delivered immediately.
    """
    for hours in (2, 1):
        annotations = {Symbol("x-opt-delivery-delay"): hours * 3_600_000}
        client.sender("orders").send_all([section(MESSAGE_ANNOTATIONS, annotations) + data(hours)])
    page = console.open("endpoints", "queues", "orders", query="?tab=delayed")
    rows = page.get_by_role("table", name="Delayed messages, the next due first").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("in 59 minutes")
    expect(page.get_by_role("definition").filter(has_text="2")).to_have_count(1)
    rows.nth(1).get_by_role("button", name="Cancel message #2").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("in 1 hour")
    expect(page.get_by_text("Message #2 will not be delivered.")).to_be_visible()
    rows.nth(1).get_by_role("button", name="Deliver now: message #1").click()
    expect(page.get_by_text("Message #1 is no longer delayed.")).to_be_visible()
    expect(page.get_by_text("No delayed messages")).to_be_visible()


def test_what_lies_on_a_queue_is_looked_at(console: Console, gateway: RunningGateway, client: Client) -> None:
    """Messages page by page, with the unacknowledged ones marked; one message in full; nothing is consumed."""
    client.sender("orders").send_all([data(f"order {i}") for i in range(60)])
    receiver = client.receiver("orders", credit=2)
    receiver.take(2)
    page = console.open("endpoints", "queues", "orders", query="?tab=messages")
    table = page.get_by_role("table", name="Messages on it")
    expect(table.get_by_role("row")).to_have_count(51)
    expect(table.get_by_text("unacknowledged")).to_have_count(2)
    table.get_by_role("row").nth(3).get_by_role("button").click()
    expect(page.get_by_role("complementary", name="Message 3")).to_contain_text("order 2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)
    page.get_by_role("button", name="Newer").click()
    expect(table.get_by_role("row")).to_have_count(11)
    page.get_by_role("button", name="Older").click()
    expect(table.get_by_role("row")).to_have_count(51)
    assert gateway.depth("orders") == 60


def test_a_long_list_is_seen_page_by_page(start: Start, show: Show) -> None:
    """Pages of a hundred rows."""
    many = show(start(vpn=Vpn(queues={f"q{number:03}": Queue() for number in range(150)})))
    page = many.open("endpoints")
    expect(page.get_by_text("150 queues and streams")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(101)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("row")).to_have_count(51)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Back").click()
    expect(page.get_by_role("row", name="q000")).to_be_visible()


def test_a_queue_is_made_purged_and_deleted(
    console: Console, gateway: RunningGateway, client: Client
) -> None:
    """Purge and delete require the queue's name, and accept no other."""
    page = console.open("endpoints")
    page.get_by_role("button", name="New…").click()
    page.get_by_label("Endpoint name").fill("orders")
    page.get_by_label("Subscription").fill("orders/>")
    assert console.violations() == []
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1, name="orders")).to_be_visible()
    assert gateway.subscriptions("orders") == ["orders/>"]
    client.sender("topic://orders/eu").send_all([data(i) for i in range(5)])

    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 messages")
    purge = dialog.get_by_role("button", name="Purge")
    expect(purge).to_be_disabled()
    dialog.get_by_role("textbox").fill("order")
    expect(purge).to_be_disabled()
    dialog.get_by_role("textbox").fill("orders")
    purge.click()
    expect(page.get_by_text("orders was purged")).to_be_visible()
    expect(dialog).to_have_count(0)
    assert gateway.depth("orders") == 0

    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("orders")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There is no queue")).to_be_visible()
    assert gateway.endpoints() == set()
    console.open("endpoints", "queues", "never")
    expect(page.get_by_role("alert")).to_contain_text("never")


def test_a_topic_endpoint_is_made_and_gets_another_topic(console: Console, gateway: RunningGateway) -> None:
    """A topic endpoint has a single topic; an invalid topic is refused."""
    page = console.open("endpoints")
    page.get_by_role("button", name="New…").click()
    page.get_by_label("Kind").select_option("topic-endpoint")
    page.get_by_label("Endpoint name").fill("reports")
    page.get_by_label("Topic", exact=True).fill("a/>")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1, name="reports")).to_be_visible()
    page.get_by_role("tab", name="Subscription").click()
    page.get_by_label("Another topic").fill("a//b")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert gateway.subscriptions("reports") == ["a/>"]
    page.get_by_label("Another topic").fill("b/>")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("reports subscribes to b/>")).to_be_visible()
    assert gateway.subscriptions("reports") == ["b/>"]


def test_subscriptions_are_added_and_taken_away(
    console: Console, gateway: RunningGateway, client: Client
) -> None:
    """
    The page adds and removes subscriptions and exceptions, refuses invalid ones, and tells where a topic is delivered.
    """
    for name in ("orders", "audit"):
        client.sender(name).send_all([data(0)])
    gateway.subscribe("audit", [">"])
    page = console.open("endpoints", "queues", "orders", query="?tab=subscriptions")
    expect(page.get_by_text("No subscriptions")).to_be_visible()
    for topic in ("orders/>", "!orders/test"):
        page.get_by_label("Topic", exact=True).fill(topic)
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_label("Topic", exact=True)).to_have_value("")
    expect(page.get_by_text("exception", exact=True)).to_be_visible()
    assert set(gateway.subscriptions("orders")) == {"orders/>", "!orders/test"}
    page.get_by_label("Topic", exact=True).fill("a//b")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert console.violations() == []

    def ask(topic: str) -> None:
        """
        Ask whether a message with this topic would be delivered here, elsewhere or nowhere, and by which subscription.
        """
        page.get_by_label("Topic of a message").fill(topic)
        page.get_by_role("button", name="Check").click()

    panel = page.get_by_role("tabpanel")
    ask("orders/eu")
    expect(panel).to_contain_text("orders/eu is delivered here")
    ask("orders/test")
    expect(panel).to_contain_text("orders/test is not delivered here")
    panel.get_by_role("link", name="audit").click()
    expect(page.get_by_role("heading", level=1, name="audit")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Remove !orders/test").click()
    expect(page.get_by_text("exception", exact=True)).to_have_count(0)
    assert gateway.subscriptions("orders") == ["orders/>"]


def test_limits_are_changed_where_an_administrator_decides(start: Start, show: Show) -> None:
    """The page shows limits in words and accepts only numbers. A limit from the configuration file has no button."""
    gateway = start(vpn=Vpn(queues={"declared": Queue(quota_mb=1)}))
    with Client(gateway.url) as client:
        client.sender("orders").send_all([data(0)])
    console = show(gateway)
    page = console.open("endpoints", "queues", "orders", query="?tab=limits")
    page.get_by_role("button", name="Change: Maximum size").click()
    dialog = page.get_by_role("dialog")
    change = dialog.get_by_role("button", name="Change", exact=True)
    dialog.get_by_role("textbox").fill("x")
    expect(change).to_be_disabled()
    dialog.get_by_role("textbox").fill("2048")
    expect(dialog).to_contain_text("2048: 2.0 GB")
    change.click()
    expect(page.get_by_role("table", name="Limits")).to_contain_text("2.0 GB")
    console.open("endpoints", "queues", "declared", query="?tab=limits")
    expect(page.get_by_text("The configuration file declares it")).to_be_visible()
    expect(page.get_by_role("table", name="Limits")).to_contain_text("1.0 MB")
    expect(page.get_by_role("button", name="Change: Maximum size")).to_have_count(0)


def test_keys_ids_and_retries_are_seen(start: Start, show: Show) -> None:
    """
    The page shows values by key and deletes one, the consumers of partitions, the number of remembered ids, a refusal
    in words, retries, and a delivery lock.
    """
    prices = Queue(kind="last-value", value_key="isin", subscriptions=("prices",))
    gateway = start(vpn=Vpn(queues={"prices": prices}))
    console = show(gateway)
    made = {"queueName": "parts", "partitionCount": 3, "retryType": "all", "retryDelayMs": 3_600_000}
    with Administration(console.url) as administration, Client(gateway.url) as client:
        administration.ask("POST", "config/msgVpns/default/queues", made)
        client.sender("topic://prices").send_all(
            [section(APPLICATION_PROPERTIES, {"isin": isin}) + data(1) for isin in "xyx"]
        )
        page = console.open("endpoints", "queues", "prices", query="?tab=values")
        rows = page.get_by_role("table", name="Keys with their newest messages").get_by_role("row")
        expect(rows).to_have_count(3)
        rows.nth(1).get_by_role("button", name="Delete y").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
        expect(page.get_by_text("y has no value.")).to_be_visible()
        expect(rows).to_have_count(2)

        page = console.open("endpoints", "queues", "parts", query="?tab=limits")
        for title, number, said in (
            ("Longest time for an id", "300000", "set the number of messages"),
            ("Ids of messages that are stored once", "10", "the last 10"),
            ("Longest time for an id", "300000", "5 minutes"),
            ("Delivery lock", "60000", "1 minute"),
        ):
            page.get_by_role("button", name=f"Change: {title}").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_role("textbox").fill(number)
            dialog.get_by_role("button", name="Change", exact=True).click()
            expect(page.get_by_text(said).first).to_be_visible()
            if "set the number" in said:
                page.keyboard.press("Escape")
        client.sender("parts").send_all([section(PROPERTIES, ["a"]) + data(number) for number in range(2)])
        receiver = client.receiver("parts", credit=1)
        receiver.modify(receiver.take(1), failed=True)
        client.wait(
            lambda: administration.monitor("queues/parts")["delayedMsgCount"] == 1, "it waits for its time"
        )
        page = console.open("endpoints", "queues", "parts")
        expect(page.get_by_title("1 id remembered")).to_have_count(1)
        expect(page.get_by_role("table", name="Consumers")).to_contain_text("0, 1, 2")
        page = console.open("endpoints", "queues", "parts", query="?tab=delayed")
        delayed = (
            page.get_by_role("table", name="Delayed messages, the next due first").get_by_role("row").nth(1)
        )
        expect(delayed).to_contain_text("in 59 minutes")
        assert console.violations() == []


def test_names_are_texts_and_nothing_else(
    console: Console, gateway: RunningGateway, client: Client, ending: ExitStack
) -> None:
    """Client names, topics and messages can contain any text, also markup: none of it runs."""
    name = "a/b c#d%2F"
    client.sender(f"queue://{name}").send_all([data(0)])
    other = ending.enter_context(Client(gateway.url, container=EVIL))
    other.sender(f"topic://{EVIL}").send_all([message_to(EVIL, EVIL)])
    other.receiver(f"queue://{name}")
    gateway.subscribe(name, [EVIL])
    page = console.open("endpoints")
    page.get_by_role("button", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_role("table", name="Consumers")).to_contain_text(EVIL)
    page.get_by_role("tab", name="Subscriptions").click()
    expect(page.get_by_role("tabpanel")).to_contain_text(EVIL)
    page.get_by_role("tab", name="Messages").click()
    expect(page.get_by_role("tabpanel")).to_contain_text(name)
    for where in ("clients", "log"):
        console.open(where)
        expect(page.get_by_role("main")).to_contain_text(EVIL)
    page.get_by_role("row").filter(has_text="img src").get_by_role("button").click()
    drawer = page.get_by_role("complementary")
    expect(drawer.get_by_role("heading", name=EVIL)).to_be_visible()
    expect(drawer.get_by_label("Body as text")).to_have_text(EVIL)
    expect(page).to_have_title("Log · default · Rewind")
    assert page.evaluate("window.hurt") is None
    assert page.locator("#app img, #app script").count() == 0


def test_who_may_not_see_the_list_sees_what_is_his(start: Start, show: Show) -> None:
    """
    A user without the right to list opens a queue by name; other queues are refused, and no other page is offered.
    """
    console = show(start(users=USERS, vpn=Vpn(queues={"his": Queue(), "hers": Queue()})))
    page = console.load()
    sign_in(console, "ben")
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_count(1)
    page.get_by_label("Name", exact=True).fill("his")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1, name="his")).to_be_visible()
    expect(page.get_by_text("No consumers")).to_be_visible()
    console.open("endpoints", "queues", "hers")
    expect(page.get_by_role("alert").first).to_contain_text("You may not do this")
    console.open("log")
    expect(page.get_by_text("You may not see this page")).to_be_visible()


# --- Clients, users and the configuration in the console --------------------------------------------------------------


def test_a_client_is_seen_and_disconnected(console: Console, gateway: RunningGateway, client: Client) -> None:
    """The page shows what the gateway holds for the client, and says when the client has gone."""
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
    """Write a configuration file."""
    path.write_text(f'data = "{data}"\n{more}\n[[listener]]\nport = 0\n[admin]\nport = {port}\n')


def test_the_configuration_is_shown_and_read_again(tmp_path: Path, show: Show) -> None:
    """A reload says what changed, what cannot change, and what is wrong, each in words."""
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
    """The answer names the deciding rule; a read-only user gets no reload button."""
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
