"""Signing in to the administration at an identity provider: with a browser, and with a token in each request."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.admin.middleware import MOST_SIGN_INS_PER_ADDRESS
from gateway.config import IdentityProvider, Settings, User
from gateway.identity_providers import LEEWAY_S, FlowSecrets
from tests.gateway.admin.conftest import LOG, QUEUES, Api, Serve
from tests.support.identity import ScriptedProvider, provider_process, token
from tests.support.ports import free_port
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until

ADMINISTER = "administer:queue://* administer:log://> consume:log://> publish:queue://q"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with the console's client secret at the provider."""
    file = tmp_path / "secret"
    file.write_text("a secret\n")
    return file


@pytest.fixture
def api(serve: Serve, provider: ScriptedProvider, secret: Path) -> Api:
    """The administration of a gateway whose console has a client id and a secret at the provider."""
    settings = provider.settings(client_id="console", client_secret_file=secret, rights_claim="scope")
    return serve(identity_providers=(settings,))


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


# --- a token in each request ------------------------------------------------------------------------------------------


def test_a_token_administers_with_the_rights_in_it(api: Api, provider: ScriptedProvider) -> None:
    """A token permits what its rights say; a wrong one is 401 with the reason, and 503 without keys to check it."""
    good = bearer(provider.token(scope=ADMINISTER))
    assert api.http.post(QUEUES, json={"queueName": "q"}, headers=good).status_code == 200
    assert api.http.get(QUEUES, headers=good).status_code == 200
    assert api.http.get(QUEUES, headers=bearer(provider.token(scope="vpn:default"))).status_code == 403
    assert api.http.get(QUEUES, headers=bearer(provider.token())).status_code == 403
    for bad, why in (
        (provider.token(aud="others"), "another audience"),
        (provider.token(seconds=-60), "expired"),
        (provider.token(by="two"), "no key of its kid"),
        (token("https://sso.example.com"), "issuer is none"),
        ("!nothing", "no signed JWT"),
        ("x" * 20_000, "more than 16,384"),
    ):
        answer = api.http.get(QUEUES, headers=bearer(bad))
        assert (answer.status_code, why in answer.text, bad[:40] in answer.text) == (401, True, False), (
            answer.text
        )
    provider.answers["/keys"] = lambda handler: handler.say({}, 503)
    api.gateway.call(lambda running: running.users.reload(Settings()))
    other = provider.settings(rights_claim="scope")
    api.gateway.call(lambda running: running.users.reload(Settings(identity_providers=(other,))))
    assert api.http.get(QUEUES, headers=good).status_code == 503


def test_a_token_that_says_who_somebody_is_begins_no_job(api: Api, provider: ScriptedProvider) -> None:
    """The job would outlive the token, and its user has no configured rights that could be looked up later."""
    asked = {"start": "beginning", "target": "queue://q", "name": "j"}
    path = f"/SEMP/v2/action/msgVpns/default{LOG}/startCopy"
    answer = api.http.put(path, json=asked, headers=bearer(provider.token(scope=ADMINISTER)))
    assert (answer.status_code, "outlives a token" in answer.text) == (403, True)
    users = {"ann": User(publish=("queue://q",), consume=("log://>",))}
    settings = provider.settings(rights_claim="scope")
    api.gateway.call(
        lambda running: running.users.reload(Settings(users=users, identity_providers=(settings,)))
    )
    answer = api.http.put(path, json=asked, headers=bearer(provider.token(scope=ADMINISTER)))
    assert answer.status_code == 200, answer.text


def test_what_is_read_with_a_token_ends_with_it(api: Api, provider: ScriptedProvider) -> None:
    """A stream of messages ends when its token expires, and when a reload removes the token's provider."""
    for seconds, why in ((4, "the token"), (600, "what is configured of this user has changed")):
        said = provider.token(scope=ADMINISTER, seconds=seconds - LEEWAY_S)
        headers = {**bearer(said), "Accept": "text/event-stream"}
        with api.http.stream("GET", "/v1/log", headers=headers) as answer:
            assert answer.status_code == 200
            if seconds == 600:
                api.gateway.call(
                    lambda running: (
                        running.users.reload(Settings(users={"ben": User()})),
                        running._admin_server.reload(running.settings.admin, ()),
                    )
                )
            text = answer.read().decode()
        assert why in text


# --- with a browser ---------------------------------------------------------------------------------------------------


def begun(http: httpx.Client, issuer: str) -> str:
    """Begin to sign in; return the URL to which the browser is redirected."""
    answer = http.get("/session/begin", params={"issuer": issuer})
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=/session/return" in cookie
    return answer.headers["location"]


def state_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["state"][0]


def test_a_person_signs_in_at_the_provider(api: Api, provider: ScriptedProvider, logged: list[Any]) -> None:
    """Code flow with PKCE: the session has the token's rights, no log line has code or state, and a code works once."""
    http = api.http
    assert http.get("/session").json()["data"]["identityProviders"] == [provider.issuer]
    url = begun(http, provider.issuer)
    query = parse_qs(urlsplit(url).query)
    assert url.startswith(f"{provider.issuer}/authorize?")
    assert (query["response_type"], query["client_id"], query["scope"]) == (["code"], ["console"], ["openid"])
    assert query["redirect_uri"] == [f"{http.base_url}/session/return".replace("//session", "/session")]
    code = provider.sign_in(url, scope=ADMINISTER)
    back = {"code": code, "state": state_of(url)}
    answer = http.get("/session/return", params=back)
    assert (answer.status_code, answer.headers.get("location")) == (303, "/"), answer.text
    data = http.get("/session").json()["data"]
    assert (data["userName"], data["isSignedIn"]) == ("ann", True)
    assert http.get(QUEUES).status_code == 200
    assert http.post(QUEUES, json={"queueName": "q"}).status_code == 403
    assert (
        http.post(QUEUES, json={"queueName": "q"}, headers={"X-CSRF-Token": data["csrfToken"]}).status_code
        == 200
    )
    assert http.get("/session/return", params=back).status_code == 401
    wait_until(lambda: len(logged) >= 3, "all are written")
    first = logged[0]
    assert (first["event"], first["operation"], first["user"]) == (
        "administered",
        "GET /session/return",
        "ann",
    )
    assert not [line for line in logged if code in repr(line) or back["state"] in repr(line)]
    api.gateway.call(lambda running: running.users.reload(Settings(users={"ben": User()})))
    assert http.get(QUEUES).status_code == 401, "its provider was let go of"


@pytest.mark.parametrize(
    ("change", "claims", "why"),
    [
        ({"state": "x"}, {}, "not begun in this browser"),
        ({"state": ""}, {}, "not begun in this browser"),
        ({"code": "none"}, {}, "did not accept the code"),
        ({"iss": "https://sso.example.com"}, {}, "Another identity provider"),
        ({"error": "access_denied<script>"}, {}, "access_denied&lt;script&gt;"),
        ({}, {"nonce": "x"}, "another sign-in"),
        ({}, {"aud": "others"}, "another audience"),
        ({}, {"azp": "others", "aud": ["console", "others"]}, "somebody else"),
        ({}, {"sub": None}, "no name"),
        ({}, {"by": "two"}, "no key of its kid"),
    ],
)
def test_who_comes_back_otherwise_is_not_signed_in(
    api: Api, provider: ScriptedProvider, change: dict[str, str], claims: dict[str, Any], why: str
) -> None:
    """A page says why, and no cookie is set."""
    url = begun(api.http, provider.issuer)
    back = {"code": provider.sign_in(url, **claims), "state": state_of(url), **change}
    answer = api.http.get("/session/return", params=back)
    assert (answer.status_code, why in answer.text) == (401, True), answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "set-cookie" not in answer.headers
    assert api.http.get(QUEUES).status_code == 401


def test_another_s_code_is_worth_nothing(api: Api, provider: ScriptedProvider) -> None:
    """A code and its state fail in another browser (a forged sign-in), and with another's PKCE verifier."""
    url = begun(api.http, provider.issuer)
    back = {"code": provider.sign_in(url), "state": state_of(url)}
    with httpx.Client(base_url=api.http.base_url, **PLAIN_HTTP) as other:
        assert other.get("/session/return", params=back).status_code == 401
        theirs = begun(other, provider.issuer)
        assert other.get("/session/return", params={**back, "state": state_of(theirs)}).status_code == 401
    assert provider.asked.count("/token") == 1


def test_a_browser_without_the_cookie_is_not_signed_in(api: Api, provider: ScriptedProvider) -> None:
    """State, nonce and verifier of no secret at all can be computed by anybody: they are worth nothing."""
    known = FlowSecrets.of("", provider.issuer)
    answer = api.http.get("/session/return", params={"code": "c", "state": known.state})
    assert (answer.status_code, "not begun in this browser" in answer.text) == (401, True), answer.text
    assert "/token" not in provider.asked


def test_what_is_not_there(api: Api, provider: ScriptedProvider, serve: Serve) -> None:
    """An issuer that is not configured is 404; a provider that cannot be reached is 503."""
    assert api.http.get("/session/begin", params={"issuer": "https://evil.example.com"}).status_code == 404
    assert api.http.get("/session/begin").status_code == 404
    provider.answers["/.well-known/openid-configuration"] = lambda handler: handler.say({}, 503)
    answer = api.http.get("/session/begin", params={"issuer": provider.issuer})
    assert (answer.status_code, "cannot be had now" in answer.text) == (503, True)


def test_who_comes_back_again_and_again_keeps_a_provider_busy_with_few(
    api: Api, provider: ScriptedProvider
) -> None:
    """Anybody can make up a code: while the provider hangs, only so many requests of one address reach it at a time."""
    url = begun(api.http, provider.issuer)
    provider.answers["/token"] = provider.hang
    back = {"code": "x", "state": state_of(url)}
    with ExitStack() as stack:
        threads = [
            threading.Thread(target=api.http.get, args=("/session/return",), kwargs={"params": back})
            for _ in range(MOST_SIGN_INS_PER_ADDRESS)
        ]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(provider.released.set)
        wait_until(lambda: provider.asked.count("/token") == len(threads), "all are asked about")
        assert api.http.get("/session/return", params=back).status_code == 429
        assert provider.asked.count("/token") == len(threads)


@pytest.mark.slow
def test_a_person_signs_in_at_a_provider_that_others_wrote(serve: Serve, secret: Path) -> None:
    """At a real provider: the browser is sent there, signs in by its form, and returns as that user."""
    port = free_port()
    settings = IdentityProvider(
        issuer=f"http://127.0.0.1:{port}", audience="rewind", client_id="console", client_secret_file=secret
    )
    http = serve(
        identity_providers=(settings,), users={"ann": User(administer=("queue://*", "log://>"))}
    ).http
    with provider_process(port, "--require-nonce", "true") as issuer, httpx.Client(**PLAIN_HTTP) as elsewhere:
        url = begun(http, issuer)
        form = elsewhere.get(url).text
        assert re.search(r'name="?sub"?', form)
        back = elsewhere.post(url, data={"sub": "ann"}).headers["location"]
        assert back.startswith(str(http.base_url).rstrip("/"))
        assert http.get(back).status_code == 303
        assert http.get("/session").json()["data"]["userName"] == "ann"
        assert http.get(QUEUES).status_code == 200
