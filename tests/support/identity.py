"""Identity providers for tests: one that the test scripts and that has its own keys, and a foreign one as a process."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt import algorithms

from gateway.config import IdentityProvider
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until

AUDIENCE: Final = "rewind"


@cache
def key(name: str) -> Any:
    """A private key, always the same for a name; ``ec…``, ``ed…`` and ``short…`` select its type, others are RSA."""
    if name.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    if name.startswith("ed"):
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65_537, 1_024 if name.startswith("short") else 2_048)


def jwk(name: str, **more: Any) -> dict[str, Any]:
    """The public key of that name."""
    kind: Any = (
        algorithms.ECAlgorithm
        if name.startswith("ec")
        else algorithms.OKPAlgorithm
        if name.startswith("ed")
        else algorithms.RSAAlgorithm
    )
    return {**kind.to_jwk(key(name).public_key(), as_dict=True), "kid": name, **more}


def encoded(value: Any) -> str:
    """A value encoded as a part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(
    issuer: str,
    *,
    by: str = "one",
    alg: str = "RS256",
    header: dict[str, Any] | None = None,
    seconds: float = 600,
    **claims: Any,
) -> str:
    """A valid token for user ann. Claims that are None are left out; other claims override the defaults."""
    said = {"iss": issuer, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time() + seconds), **claims}
    return jwt.encode(
        {name: value for name, value in said.items() if value is not None},
        key(by),
        alg,
        {name: value for name, value in {"kid": by, **(header or {})}.items() if value is not None},
    )


Answer = Callable[["_Handler"], None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.provider.answer(self)

    do_POST = do_GET

    def say(self, value: Any, status: int = 200, **headers: str) -> None:
        """Answer with JSON, or with bytes."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    provider: ScriptedProvider

    def handle_error(self, *_: Any) -> None:
        """Log nothing: in some tests the client leaves on purpose."""


class ScriptedProvider:
    """
    An identity provider over HTTP that serves on threads.

    Attributes:
        keys: The keys that it publishes.
        answers: Functions that answer at a path instead of the regular answer.
        asked: The paths that were requested.
        codes: For each authorization code, the query of its sign-in and the claims of its token.
        released: Set when a test ends; it releases the requests that hang.
    """

    def __init__(self) -> None:
        self.keys = [jwk("one")]
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.codes: dict[str, tuple[dict[str, str], dict[str, Any]]] = {}
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def settings(self, **more: Any) -> IdentityProvider:
        """Settings with which a gateway accepts this provider's tokens."""
        return IdentityProvider(**{"issuer": self.issuer, "audience": AUDIENCE, **more})

    def token(self, **said: Any) -> str:
        """See ``token``."""
        return token(self.issuer, **said)

    def hang(self, handler: _Handler) -> None:
        """Leave a request without an answer until the test ends."""
        self.released.wait(60)

    def answer(self, handler: _Handler) -> None:
        path = urlsplit(handler.path).path
        self.asked.append(path)
        if path in self.answers:
            self.answers[path](handler)
        elif path == "/.well-known/openid-configuration":
            handler.say(
                {
                    "issuer": self.issuer,
                    "jwks_uri": f"{self.issuer}/keys",
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                }
            )
        elif path == "/keys":
            handler.say({"keys": self.keys})
        elif path == "/token":
            size = int(handler.headers["Content-Length"])
            self._redeem(handler, dict(parse_qsl(handler.rfile.read(size).decode())))
        else:
            handler.say({}, 404)

    def sign_in(self, url: str, **claims: Any) -> str:
        """A person signs in at this address of the provider; returns the code that the browser brings back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = f"code-{len(self.codes)}"
        self.codes[code] = query, {"aud": query["client_id"], "nonce": query["nonce"], **claims}
        return code

    def _redeem(self, handler: _Handler, form: dict[str, str]) -> None:
        if form["code"] not in self.codes:
            handler.say({"error": "invalid_grant"}, 400)
            return
        query, claims = self.codes.pop(form["code"])
        challenge = encoded(hashlib.sha256(form["code_verifier"].encode()).digest())
        login = base64.b64decode(handler.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        is_right = (
            form["grant_type"] == "authorization_code"
            and form["redirect_uri"] == query["redirect_uri"]
            and (query["code_challenge"], query["code_challenge_method"]) == (challenge, "S256")
            and (login == f"{query['client_id']}:a%20secret" or form.get("client_id") == query["client_id"])
        )
        found: dict[str, Any] = {
            "id_token": self.token(**claims),
            "access_token": "x",
            "token_type": "Bearer",
        }
        handler.say(found if is_right else {"error": "invalid_grant"}, 200 if is_right else 400)


@contextmanager
def provider_process(port: int, *arguments: str) -> Iterator[str]:
    """Run ``oidc-provider-mock`` at this port with fresh keys; yields its issuer."""
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(port), "the provider answers", 60)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/jwks", **PLAIN_HTTP).status_code == 200
    except httpx.TransportError:
        return False


def id_token(issuer: str, user: str, client: str = AUDIENCE) -> str:
    """The id token for ``user``, who signs in at the provider process and consents to ``client``."""
    back = f"{issuer}/back"
    with httpx.Client(**PLAIN_HTTP) as browser:
        asked = {"response_type": "code", "client_id": client, "redirect_uri": back, "scope": "openid"}
        answer = browser.post(f"{issuer}/oauth2/authorize", params=asked, data={"sub": user})
        code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
        found = browser.post(f"{issuer}/oauth2/token", data=form, auth=(client, "any"))
    text: str = found.raise_for_status().json()["id_token"]
    return text
