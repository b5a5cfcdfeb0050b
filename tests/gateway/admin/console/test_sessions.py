"""Sessions of the console: how many there are, how they begin, and when they end."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from starlette.requests import HTTPConnection

from gateway.admin import middleware
from gateway.admin.administrators import (
    COOKIE,
    IDLE_S,
    MOST_SESSIONS,
    MOST_SESSIONS_PER_USER,
    WHOLE_S,
    Sessions,
    token_of,
)
from gateway.admin.middleware import MOST_SIGN_INS_PER_ADDRESS
from gateway.config import AdminListener, Settings, User, Vpn, token_hash
from gateway.logging.lines import BURST
from gateway.users import Users
from tests.gateway.admin.conftest import HASH, QUEUES, Administer, Serve, Start, connect, tls_of
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.waiting import Clock, wait_until

# --- Sessions of the console by themselves --------------------------------------------------------------------------

OURS = f"{COOKIE}-8080"
CHANGED = User(consume=("queue://q",))


@pytest.fixture
def users() -> Users:
    """Two users with different settings, and many more."""
    return Users(
        Settings(users={name: User() for name in ("ann", "ben", *(f"u{n}" for n in range(MOST_SESSIONS)))})
    )


@pytest.fixture
def sessions(users: Users, clock: Clock) -> Sessions:
    return Sessions(users, clock, lambda: True)


def test_a_session_is_found_by_what_its_cookie_holds_and_by_nothing_else(sessions: Sessions) -> None:
    """Two sessions of one user have different secrets; the CSRF token finds no session; all secrets have 256 bits."""
    first, session = sessions.begin("ann")
    second, other = sessions.begin("ann")
    assert sessions.find(first) is session
    assert sessions.find(second) is other
    assert len({first, second, session.csrf_token, other.csrf_token}) == 4
    assert min(map(len, (first, session.csrf_token))) == 43  # 256 bits in base 64
    for wrong in (None, "", first[:-1], first + "x", session.csrf_token, "\udc80"):
        assert sessions.find(wrong) is None
    assert first not in repr(vars(sessions)), "who reads the memory of sessions can use none of them"


def test_a_session_ends_when_it_is_not_used_and_however_much_it_is(sessions: Sessions, clock: Clock) -> None:
    """Each request restarts the idle time. After a working day the session ends all the same, for ever."""
    token, _ = sessions.begin("ann")
    for _ in range(3):
        clock.seconds += IDLE_S - 1
        assert sessions.find(token) is not None
    clock.seconds += IDLE_S
    assert sessions.find(token) is None
    token, session = sessions.begin("ann")
    while clock.seconds < session.begun + WHOLE_S - 60:
        clock.seconds += 60
        assert sessions.find(token) is not None
    clock.seconds = session.begun + WHOLE_S
    assert sessions.find(token) is None
    clock.seconds -= 60
    assert sessions.find(token) is None


def test_a_session_ends_when_other_things_are_said_of_its_user(sessions: Sessions, users: Users) -> None:
    """A session ends when its user's rules change or the user is removed; a reload with the same rules ends none."""
    ann, _ = sessions.begin("ann")
    ben, _ = sessions.begin("ben")
    users.reload(Settings(users={"ann": User(), "ben": CHANGED}))
    assert sessions.find(ann) is not None
    assert sessions.find(ben) is None
    users.reload(Settings(users={"ben": CHANGED}))
    assert sessions.find(ann) is None
    users.reload(Settings(users={"ann": User(), "ben": CHANGED}))
    assert sessions.find(ann) is None, "a user of the same name is another"


def test_none_is_found_where_none_is_wanted(users: Users, clock: Clock) -> None:
    """Turning the console off, while the gateway runs, ends all sessions; turning it on again brings none back."""
    wanted = [True]
    sessions = Sessions(users, clock, lambda: wanted[0])
    token, _ = sessions.begin("ann")
    wanted[0] = False
    assert sessions.find(token) is None
    wanted[0] = True
    assert sessions.find(token) is None


def test_a_user_ends_his_own_sessions_by_having_too_many(sessions: Sessions) -> None:
    """The user's least recently used session ends; sessions of other users stay."""
    theirs, _ = sessions.begin("ben")
    own = [sessions.begin("ann")[0] for _ in range(MOST_SESSIONS_PER_USER)]
    assert sessions.find(own[0]) is not None  # and is now the most recently used one
    newest, _ = sessions.begin("ann")
    assert sessions.find(own[1]) is None
    assert all(sessions.find(token) for token in (theirs, own[0], *own[2:], newest))
    assert len(sessions) == MOST_SESSIONS_PER_USER + 1


def test_there_are_no_more_than_so_many(sessions: Sessions, clock: Clock) -> None:
    """The least recently used session of all users ends; sessions that have ended do not count."""
    first, second, *_ = (sessions.begin(f"u{number}")[0] for number in range(MOST_SESSIONS))
    assert len(sessions) == MOST_SESSIONS
    assert sessions.find(first) is not None
    sessions.begin("ann")
    assert len(sessions) == MOST_SESSIONS
    assert sessions.find(second) is None
    assert sessions.find(first) is not None
    clock.seconds += IDLE_S
    sessions.begin("ann")
    assert len(sessions) == 1


def test_what_goes_on_ends_with_its_session(sessions: Sessions, users: Users, clock: Clock) -> None:
    """A request in progress ends, once, at sign-out, when its user changes, when idle, or after a working day."""

    async def run() -> None:
        ended: list[str] = []
        with ExitStack() as stack:
            tokens = {}
            for name in ("out", "changed", "idle"):
                tokens[name], session = sessions.begin("ben" if name == "changed" else "ann")
                stack.enter_context(sessions.going_on(session, partial(ended.append, name)))
            _, session = sessions.begin("ann")
            with sessions.going_on(session, partial(ended.append, "over")):
                pass
            sessions.end(tokens["out"])
            assert ended == ["out"]
            users.reload(Settings(users={"ann": User(), "ben": CHANGED}))
            assert sessions.find(tokens["changed"]) is None
            assert ended == ["out", "changed"]
            clock.seconds += IDLE_S
            _, session = sessions.begin("ann")
            assert ended == ["out", "changed", "idle"]
            clock.seconds += WHOLE_S
            whole = asyncio.Event()
            stack.enter_context(sessions.going_on(session, whole.set))
            await asyncio.wait_for(whole.wait(), 20)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ([], None),
        (["a=b"], None),
        ([f"{OURS}=x"], "x"),
        ([f"a=b; {OURS}=x=y; c"], "x=y"),
        (["a=b", f"{OURS}=x"], "x"),
        ([f"{OURS}=x; {OURS}=y"], None),
        ([f"{OURS}=x", f"{OURS}=x"], None),
        ([f"x{OURS}=x; {OURS}x=y"], None),
        ([f"{COOKIE}-8081=x; {OURS}=y; {COOKIE}=z"], "y"),
    ],
)
def test_a_cookie_that_is_there_twice_is_nobody_s(fields: list[str], token: str | None) -> None:
    """Another page may have set one of them. A cookie with another port in its name belongs to another gateway."""
    headers = [(b"host", b"a"), *((b"cookie", field.encode()) for field in fields)]
    request = HTTPConnection({"type": "http", "server": ("127.0.0.1", 8080), "headers": headers})
    assert token_of(request) == token


# --- Signing in with a browser, over HTTP ---------------------------------------------------------------------------

ANN = {"userName": "ann", "password": "secret"}
USERS = {
    "ann": User(
        password=HASH,
        token=token_hash("ann-s-token"),
        publish=("topic://>",),
        administer=("queue://*", "log://>"),
    ),
    "ben": User(password=HASH, vpns=("default", "other"), global_access="read-only"),
}


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with users, and two Message VPNs."""
    return start(users=USERS, vpns={"other": Vpn(enabled=False)})


@pytest.fixture
def http(gateway: RunningGateway, administer: Administer) -> httpx.Client:
    """A browser, as far as cookies are concerned."""
    return administer(gateway).http


def name_of(http: httpx.Client) -> str:
    """The name of the session cookie."""
    return f"{COOKIE}-{http.base_url.port}"


def attributes_of(answer: httpx.Response) -> set[str]:
    """The attributes of the cookie that an answer sets."""
    return {one.strip().lower() for one in answer.headers["set-cookie"].split(";")[1:]}


def sign_in(http: httpx.Client, **said: str) -> httpx.Response:
    """Sign in as ann, or with the credentials given."""
    return http.post("/session", json=said or ANN)


def signed_in(http: httpx.Client, **said: str) -> dict[str, Any]:
    """Sign in, which has to succeed; return what the page is told."""
    answer = sign_in(http, **said)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    http.headers["X-CSRF-Token"] = found["csrfToken"]
    return found


def make_queue(http: httpx.Client, name: str = "q", **headers: str) -> int:
    """Make a queue; return the status of the answer."""
    return http.post(QUEUES, json={"queueName": name}, headers=headers).status_code


def test_who_has_not_signed_in_is_told_that_and_no_more(http: httpx.Client) -> None:
    """The answer shows no Message VPN and no version."""
    answer = http.get("/session")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["data"] == {
        "userName": "",
        "isSignedIn": False,
        "isSignInNeeded": True,
        "csrfToken": "",
        "globalAccess": "none",
        "msgVpns": [],
        "version": "",
        "identityProviders": [],
    }
    assert http.get(QUEUES).status_code == 401


def test_a_password_or_a_token_signs_in(http: httpx.Client) -> None:
    """The cookie is for this address only, and hidden from scripts. A change needs the CSRF token, too."""
    for said in (ANN, {"token": "ann-s-token"}):
        answer = sign_in(http, **said)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{name_of(http)}=")
        assert attributes_of(answer) == {"httponly", "samesite=strict", "path=/"}
        data = answer.json()["data"]
        assert data == http.get("/session").json()["data"]
        assert (data["userName"], data["isSignedIn"]) == ("ann", True)
        assert data["globalAccess"] == "none"
        assert data["msgVpns"] == [{"msgVpnName": "default", "state": "up", "mayAdministerLog": True}]
        assert http.get(QUEUES).status_code == 200
        name = said.get("token", "q")
        assert make_queue(http, name, **{"X-CSRF-Token": data["csrfToken"]}) == 200
        http.cookies.clear()
        assert http.get(QUEUES).status_code == 401


def test_the_cookie_is_for_tls_alone_where_a_proxy_ends_it(http: httpx.Client) -> None:
    """Of several proxies, the first in `X-Forwarded-Proto` is the one that the browser connected to."""
    for said, is_secure in (("https", True), ("HTTPS, http", True), ("http", False), ("http, https", False)):
        proxied = {"X-Forwarded-Proto": said}
        answers = [
            http.post("/session", json=ANN, headers=proxied),
            http.delete("/session", headers={**proxied, "Authorization": "Bearer ann-s-token"}),
        ]
        assert [("secure" in attributes_of(answer)) for answer in answers] == [is_secure] * 2, said


def test_what_is_shown_is_what_the_user_may_see(http: httpx.Client) -> None:
    """The Message VPNs that the user may enter, with their states, and the user's access to the gateway."""
    data = signed_in(http, userName="ben", password="secret")
    assert data["globalAccess"] == "read-only"
    assert data["msgVpns"] == [
        {"msgVpnName": "default", "state": "up", "mayAdministerLog": False},
        {"msgVpnName": "other", "state": "down", "mayAdministerLog": False},
    ]
    assert http.get("/SEMP/v2/monitor/msgVpns").status_code == 200
    assert http.get("/SEMP/v2/monitor/msgVpns/default").status_code == 403


def test_who_is_not_known_gets_no_session(http: httpx.Client) -> None:
    """Every refusal is the same, and sets no cookie."""
    for said in (
        {"userName": "ann", "password": "Secret"},
        {"userName": "ann", "password": ""},
        {"userName": "nobody", "password": "secret"},
        {"userName": "", "password": ""},
        {"token": "ann-s-toke"},
        {"token": token_hash("ann-s-token")},
        {"token": ""},
    ):
        answer = sign_in(http, **said)
        told = answer.json()["meta"]["error"]["description"]
        assert (answer.status_code, told) == (401, "The name, the password or the token is wrong."), said
        assert "set-cookie" not in answer.headers


def test_half_of_a_sign_in_is_none(http: httpx.Client) -> None:
    """400, without repeating what was sent. A form is refused too: a foreign page can send one without a script."""
    half: tuple[Any, ...] = (
        {},
        {"userName": "ann"},
        {"password": "secret"},
        {**ANN, "token": "ann-s-token"},
        {**ANN, "more": "x"},
        {"userName": "ann", "password": 1},
        {"userName": "ann", "password": "x" * 1_001},
        [],
    )
    for answer in (http.post("/session", data=ANN), *(http.post("/session", json=said) for said in half)):
        assert answer.status_code == 400, answer.text
        assert "secret" not in answer.text
        assert "xxx" not in answer.text


def test_nobody_signs_in_where_nobody_needs_to(serve: Serve) -> None:
    """Without users, the page is told that it may request everything."""
    http = serve().http
    data = http.get("/session").json()["data"]
    assert (data["isSignedIn"], data["isSignInNeeded"], data["userName"]) == (True, False, "")
    assert data["globalAccess"] == "read-write"
    assert data["msgVpns"] == [{"msgVpnName": "default", "state": "up", "mayAdministerLog": True}]
    assert data["version"]
    assert sign_in(http).status_code == 400
    assert http.delete("/session").status_code == 200


def test_a_change_needs_what_the_page_was_told(http: httpx.Client) -> None:
    """The CSRF token: a browser adds the cookie to a request that a foreign page makes, but not this header."""
    token = signed_in(http)["csrfToken"]
    del http.headers["X-CSRF-Token"]
    for wrong in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": token[:-1]}, {"X-CSRF-Token": "é"}):
        raw = {name: value.encode("latin-1") for name, value in wrong.items()}
        answer = http.post(QUEUES, json={"queueName": "q"}, headers=raw)
        assert answer.status_code == 403, wrong
    assert http.delete("/session").status_code == 403
    assert http.put("/SEMP/v2/action/reload").status_code == 403
    assert http.get(QUEUES).json()["data"] == []
    with httpx.Client(base_url=http.base_url, **PLAIN_HTTP) as other:
        theirs = signed_in(other, userName="ben", password="secret")["csrfToken"]
    assert make_queue(http, **{"X-CSRF-Token": theirs}) == 403, "one session's token is no other's"
    assert make_queue(http, **{"X-CSRF-Token": token}) == 200


def asked_with(http: httpx.Client, *cookies: str) -> int:
    """Send a request with these values of the cookie and no other; return the status."""
    http.cookies.clear()
    said = "; ".join(f"{name_of(http)}={cookie}" for cookie in cookies)
    return http.get(QUEUES, headers={"Cookie": said}).status_code


def test_signing_in_takes_no_session_that_the_browser_had(http: httpx.Client) -> None:
    """Against session fixation: a planted cookie becomes no session, and the browser's old session ends."""
    http.cookies.set(name_of(http), "planted", domain="127.0.0.1", path="/")
    answer = sign_in(http)
    assert "planted" not in answer.headers["set-cookie"]
    first = answer.cookies[name_of(http)]
    http.cookies.clear()
    assert sign_in(http, **ANN).cookies[name_of(http)] != first
    http.cookies.clear()
    http.cookies.set(name_of(http), first, domain="127.0.0.1", path="/")
    second = sign_in(http).cookies[name_of(http)]
    assert [asked_with(http, one) for one in (first, "planted", second)] == [401, 401, 200]
    # A page at another port of this machine can set a cookie of the same name: with two, neither is accepted.
    assert asked_with(http, "theirs", second) == 401


def test_signing_out_ends_the_session(http: httpx.Client) -> None:
    """The cookie is of no use afterwards, and the browser is told to delete it."""
    signed_in(http)
    cookie = http.cookies[name_of(http)]
    answer = http.delete("/session")
    assert answer.status_code == 200
    assert answer.json()["data"]["isSignedIn"] is False
    assert name_of(http) not in http.cookies
    assert asked_with(http, cookie) == 401
    assert http.delete("/session").status_code == 200


def test_what_goes_on_in_a_session_ends_with_it(http: httpx.Client) -> None:
    """A stream of messages ends and says why; a stream in another session of the same user goes on."""
    signed_in(http)
    live = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default/live"
    with (
        httpx.Client(base_url=http.base_url, **PLAIN_HTTP | {"timeout": 20}) as other,
        httpx.Client(base_url=http.base_url, **PLAIN_HTTP | {"timeout": 20}) as program,
    ):
        signed_in(other)
        with http.stream("GET", live) as stream, other.stream("GET", live) as others:
            assert (stream.status_code, others.status_code) == (200, 200)
            headers = {
                "X-CSRF-Token": http.headers["X-CSRF-Token"],
                "Cookie": f"{name_of(http)}={http.cookies[name_of(http)]}",
            }
            assert program.delete("/session", headers=headers).status_code == 200
            told = "".join(stream.iter_text())
            assert "event: error" in told
            assert "the session has ended" in told
            form = {"Authorization": "Bearer ann-s-token", "Content-Type": "application/x-ndjson"}
            published = program.post(
                "/v1/publish", params={"address": "topic://a"}, content=b'{"body": "x"}', headers=form
            )
            assert published.status_code == 200, published.text
            assert any("event: msgs" in line for line in others.iter_lines())


def test_who_says_who_he_is_needs_no_token_of_a_page(http: httpx.Client) -> None:
    """A program with a password or a bearer token needs no CSRF token; a cookie sent with it is ignored."""
    signed_in(http, userName="ben", password="secret")
    del http.headers["X-CSRF-Token"]
    bearer = {"Authorization": "Bearer ann-s-token"}
    assert make_queue(http, **bearer) == 200
    data = http.get("/session", headers=bearer).json()["data"]
    assert (data["userName"], data["csrfToken"]) == ("ann", "")
    wrong = {"Authorization": "Bearer wrong"}
    assert http.get("/session", headers=wrong).status_code == 401
    assert http.get(QUEUES, headers=wrong).status_code == 401


def test_a_page_s_script_is_not_asked_for_a_password_by_the_browser(http: httpx.Client) -> None:
    """A browser would open its own dialog on `Basic`; a program, or a person who opens the page, is offered it."""
    script = http.get(QUEUES, headers={"Sec-Fetch-Dest": "empty"})
    assert script.status_code == 401
    assert "Basic" not in script.headers["www-authenticate"]
    assert "Basic" in http.get(QUEUES).headers["www-authenticate"]
    assert "Basic" in http.get(QUEUES, headers={"Sec-Fetch-Dest": "document"}).headers["www-authenticate"]


def test_signing_in_leaves_a_line_without_the_password(logged: list[Any], http: httpx.Client) -> None:
    """The line has the user and the status; changes in the session are logged with the user's name."""
    assert sign_in(http, userName="ann", password="wr0ng").status_code == 401
    signed_in(http)
    assert make_queue(http) == 200
    assert http.delete("/session").status_code == 200
    wait_until(lambda: len(logged) == 4, "all are written")  # the last, after its answer
    assert [(line["event"], line["operation"], line["user"], line["status"]) for line in logged] == [
        ("administration_refused", "POST /session", "ann", 401),
        ("administered", "POST /session", "ann", 200),
        ("administered", f"POST {QUEUES}", "ann", 200),
        ("administered", "DELETE /session", "ann", 200),
    ]
    assert not [line for line in logged if "secret" in repr(line) or "wr0ng" in repr(line)]


def head(length: int) -> bytes:
    """The head of a sign-in request with a body of this length."""
    text = "POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{text}Content-Length: {length}\r\n\r\n".encode()


def test_who_signs_in_and_never_says_who_he_is_keeps_nobody_out(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address may have a few unfinished sign-ins, for a short time; administrators are not delayed."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(http)) for _ in range(MOST_SIGN_INS_PER_ADDRESS)]
        for sock in waiting:
            sock.sendall(head(100) + b"{")
        bearer = {"Authorization": "Bearer ann-s-token"}
        wait_until(lambda: sign_in(http).status_code == 429, "the address has all that it may have")
        assert make_queue(http, **bearer) == 200
        waiting[0].sendall(b" " * 99)
        assert waiting[0].recv(65_536).startswith(b"HTTP/1.1 400 ")
        wait_until(lambda: sign_in(http).status_code == 200, "there is room again")
        for sock in waiting[1:]:
            sock.close()
        monkeypatch.setattr(middleware, "SIGN_IN_BODY_S", 0.3)
        with connect(http) as slow:
            slow.sendall(head(100) + b"{")
            assert slow.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_no_name_and_password_have_is_not_read(http: httpx.Client) -> None:
    """A body that is too long for a name and a password is refused before it is read: 413."""
    with connect(http) as sock:
        sock.sendall(head(1_000_000) + b" " * 9_000)
        assert sock.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_what_strangers_send_fills_no_log(logged: list[Any], http: httpx.Client) -> None:
    """Lines about one address are limited, and the rest counted, whatever is wrong with the requests."""
    for _ in range(BURST + 5):
        assert http.post("/session", content=b"{").status_code == 400
    assert len(logged) <= BURST + 1


def test_under_tls_the_cookie_is_for_tls_alone(start: Start, tmp_path: Path) -> None:
    """The cookie is `Secure`; a client with a certificate needs no cookie."""
    authority = trustme.CA()
    tls = tls_of(authority, tmp_path)
    users = {**USERS, "eve": User(certificate_names=("eve.example",))}
    gateway = start(users=users, admin=AdminListener(port=0, tls=tls))
    url = gateway.call(lambda running: running.admin[0])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(base_url=url, verify=context, trust_env=False) as http:
        assert "; secure" in sign_in(http).headers["set-cookie"].lower()
        assert http.get(QUEUES).status_code == 200
    authority.issue_cert("client.invalid", common_name="eve.example").configure_cert(context)
    with httpx.Client(base_url=url, verify=context, trust_env=False) as http:
        assert http.get("/session").json()["data"]["userName"] == "eve"
