"""
Identity providers: the tokens (JWT of OAuth 2.0 and OpenID Connect) that identify users, and how they are verified.

A token is verified with the public keys of one provider: the one that its claim ``iss`` names. Its signature must be of
an asymmetric algorithm, made with a key of the kind that the algorithm needs. So a public key is never used as the
secret of an HMAC, and an unsigned token is never accepted.

Keys and metadata are read when the first token needs them, and again when they are ``FRESH_S`` old. A token with an
unknown key causes them to be read again, but at most once in ``PAUSE_S``, however many such tokens arrive; tokens that
arrive during a read wait for its result. Keys and metadata that cannot be read again are used for ``STALE_S`` at most.

Invariants. No error, log line or repr contains a token, a code or a secret. A provider's answers are bounded in bytes
and in time, and no redirect is followed: only the configured address is asked.

Sources: RFC 7519 (JWT) with RFC 8725 (its best current practice), RFC 7517 (keys), RFC 8414 and OpenID Connect
Discovery 1.0 (metadata), OpenID Connect Core 1.0 section 3.1 and RFC 7636 (the code flow of the console, with PKCE).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import structlog
from pydantic import TypeAdapter, ValidationError

from amqp_ext.sasl import ANONYMOUS_USER, normalise
from gateway.config import IdentityProvider, User
from gateway.config.setting_types import check_provider_url, is_loopback
from gateway.config.settings import PERMISSIONS
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action, Permissions
from gateway.logging import log_keys
from gateway.tls import authorities

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger()

T = TypeVar("T")

MOST_TOKEN_CHARACTERS: Final = 16_384
"""Characters of a token. One with all groups of a large company has some thousand; HTTP and SASL allow more."""

LEEWAY_S: Final = 30
"""Seconds by which the clocks of a provider and of this machine may differ."""

MOST_ANSWER_BYTES: Final = 262_144
"""Bytes of a provider's answer. A key has about 500."""

ANSWER_S: Final = 5.0
"""Seconds that an answer may take, from the look-up of the name to the last byte: half the time of a handshake."""

MOST_KEYS: Final = 100
"""Keys of a provider that are used; the others are ignored."""

PAUSE_S: Final = 10.0
"""Seconds at least between two reads."""

FRESH_S: Final = 600.0
"""Seconds after which keys and metadata are read again, so that a withdrawn key is no longer accepted."""

STALE_S: Final = 86_400.0
"""Seconds for which keys and metadata are used if they cannot be read again: a provider may be down for a night."""

MOST_NAME: Final = 250
"""Characters of a user's name."""

RSA_BITS: Final = range(2_048, 8_193)
"""Sizes of RSA keys: shorter ones can be broken (RFC 7518 section 3.3), longer ones take long."""

ALGORITHMS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""The accepted algorithms, with the type of key and the curve that each needs (RFC 7518, RFC 8037)."""


def _not_good(why: str) -> Refused:
    return Refused(ErrorCode.UNAUTHORIZED, f"the token is not good: {why}")


class Unavailable(Exception):
    """A provider could not be asked, or its answer is not valid; the text says which provider, and why, for the log."""


# --- what a provider is asked -----------------------------------------------------------------------------------------


class Asking:
    """
    Asks a provider over HTTP.

    Args:
        settings: The provider's.
    """

    def __init__(self, settings: IdentityProvider) -> None:
        self._tls_ca = settings.tls_ca

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, login: tuple[str, str] | None = None
    ) -> Any:
        """
        Get the JSON at a URL; with a form, post the form and return the JSON of the answer.

        Args:
            login: Name and password for HTTP Basic.

        Raises:
            Unavailable: There is no such answer, or not in time.
        """
        host, found = urlsplit(url).netloc, bytearray()
        try:
            client = await asyncio.to_thread(self._client, url)
            async with asyncio.timeout(ANSWER_S):
                method = "GET" if form is None else "POST"
                async with client, client.stream(method, url, data=form, auth=login) as answer:
                    if answer.status_code != 200:
                        raise Unavailable(
                            f"{host} answers {answer.status_code} at {urlsplit(url).path or '/'}"
                        )
                    async for data in answer.aiter_raw():
                        found += data
                        if len(found) > MOST_ANSWER_BYTES:
                            raise Unavailable(f"{host} answers with more than {MOST_ANSWER_BYTES:,} bytes")
            return json.loads(found)
        except TimeoutError:
            raise Unavailable(f"{host} has not answered within {ANSWER_S:g} s") from None
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"what {host} answers is no JSON, or its authorities cannot be read") from error
        except Unavailable:
            raise
        except Exception as error:  # whatever a library makes of what is said on the other side
            raise Unavailable(f"{host} cannot be asked: {type(error).__name__}") from error

    def _client(self, url: str) -> httpx.AsyncClient:
        """Called on a thread: loading the library and all authorities takes longer than a turn of the loop."""
        import httpx  # noqa: PLC0415 - it comes with an extra

        parts = urlsplit(url)
        return httpx.AsyncClient(
            verify=authorities(self._tls_ca) if parts.scheme == "https" else False,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            # Proxies are those that the environment names, but none of this machine's own.
            trust_env=not is_loopback(parts.hostname or ""),
            timeout=ANSWER_S,
        )


class Kept(Generic[T]):
    """
    A value that is read from a provider, cached, and read again when it is old: its keys, or its metadata.

    Args:
        what: The name of the value, for the log.
        read: Reads it; raises ``Unavailable``.
        monotonic: Seconds of a clock that never goes back.
    """

    def __init__(self, what: str, read: Callable[[], Awaitable[T]], monotonic: Callable[[], float]) -> None:
        self._what = what
        self._read = read
        self._monotonic = monotonic
        self._value: T | None = None
        self._read_at = self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def value(self) -> T:
        """
        The value; it is read first if it is missing or old.

        Raises:
            Refused: INTERNAL, the value is missing or too old, and cannot be read.
        """
        if self._monotonic() - self._read_at > FRESH_S:
            await self.renew()
        if self._value is None or self._monotonic() - self._read_at > STALE_S:
            raise Refused(ErrorCode.INTERNAL, f"{self._what} cannot be had now; try again later")
        return self._value

    async def renew(self) -> None:
        """Read the value again, unless that was tried within ``PAUSE_S``; concurrent calls wait for the same read."""
        if self._reading is None and self._monotonic() - self._tried_at >= PAUSE_S:
            self._tried_at = self._monotonic()
            self._reading = asyncio.get_running_loop().create_task(self._renew())
        if self._reading is not None:
            # Whoever began it may leave; the others still want it.
            await asyncio.shield(self._reading)

    def outdate(self) -> None:
        """The value may have changed: it is read again before its next use, if that is possible."""
        self._read_at = min(self._read_at, self._monotonic() - FRESH_S - 1)
        self._tried_at = float("-inf")

    async def _renew(self) -> None:
        try:
            self._value = await self._read()
            self._read_at = self._monotonic()
        except Unavailable as error:
            log.warning("provider_unavailable", **{log_keys.REASON: f"{self._what}: {error}"})
        finally:
            self._reading = None


# --- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of a provider."""

    kid: str | None
    kind: tuple[str, str | None]
    """Its type and, except for RSA, its curve."""
    algorithm: str | None
    """The only algorithm that the key is for; None if the provider does not restrict it."""
    public: Any = field(repr=False)

    def signs(self, algorithm: str) -> bool:
        """Whether the key can have made a signature of this algorithm."""
        return self.kind == ALGORITHMS[algorithm] and self.algorithm in (None, algorithm)


def _keys_of(said: Any) -> Sequence[_Key]:
    """
    The keys of a JSON Web Key Set that can sign tokens. Other keys are ignored, as RFC 7517 section 5 says; so are
    secret keys, which must not be published.

    Raises:
        Unavailable: ``said`` is not a JSON Web Key Set.
    """
    keys = said.get("keys") if isinstance(said, dict) else None
    if not isinstance(keys, list):
        raise Unavailable("it is not a JSON Web Key Set")
    return [found for key in keys[:MOST_KEYS] if (found := _key_of(key)) is not None]


def _key_of(said: Any) -> _Key | None:
    import jwt  # noqa: PLC0415 - it comes with an extra

    if not isinstance(said, dict) or "d" in said or said.get("use", "sig") != "sig":
        return None
    kind = (said.get("kty"), None if said.get("kty") == "RSA" else said.get("crv"))
    algorithm = next((name for name, its_kind in ALGORITHMS.items() if its_kind == kind), None)
    if algorithm is None or "verify" not in said.get("key_ops", ("verify",)):
        return None
    try:
        public = jwt.PyJWK({key: said[key] for key in said if key not in ("alg", "x5c")}, algorithm).key
    except Exception:  # whatever a library makes of it: it is no key
        return None
    if kind[0] == "RSA" and public.key_size not in RSA_BITS:
        return None
    return _Key(said.get("kid"), kind, said.get("alg"), public)  # type: ignore[arg-type]


# --- who a token says it is -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TokenUser:
    """
    A user who has signed in with a token of an identity provider.

    Attributes:
        name: The user's name.
        expires_s: When the token does, in seconds since 1970.
        provider: Who gave the token.
        said: What the token says that he may do, as a ``[user]`` of the configuration would; None where it says
            nothing, and what is configured of the name holds.
        permissions: The rules of that.
    """

    name: str
    expires_s: float
    provider: Provider = field(repr=False)
    said: User | None = field(default=None, repr=False)
    permissions: Permissions | None = field(default=None, repr=False)

    @property
    def held_until_s(self) -> float:
        """The time until which the token is accepted, in seconds since 1970."""
        return self.expires_s + LEEWAY_S

    def left_s(self, now_s: float) -> float:
        """Seconds for which the token is still accepted; zero or less if it no longer is."""
        return self.held_until_s - now_s


_RIGHT: Final = re.compile(rf"({'|'.join(PERMISSIONS)}|vpn|global_access):(.*)", re.DOTALL)


@cache
def _reader() -> TypeAdapter[User]:
    return TypeAdapter(User)


def _rights_of(said: Any, claim: str) -> User | None:
    """
    The rights in a claim, as a ``[user]`` has them; None if there are none. Other words are ignored, because a provider
    has roles and scopes for other services, too.

    Raises:
        Refused: UNAUTHORIZED, a word looks like a right and is not valid. If it was ignored, and was an exception, what
            it forbids would be permitted.
    """
    if isinstance(said, str):
        said = said.split()
    if not isinstance(said, list | None) or not all(isinstance(word, str) for word in said or ()):
        raise _not_good(f"its claim {claim!r} is neither a text nor a list of texts")
    lists: dict[str, set[str]] = {}
    for word in said or ():
        if found := _RIGHT.fullmatch(word):
            lists.setdefault(found[1], set()).add(found[2])
    if not lists:
        return None
    values: dict[str, Any] = {key: tuple(sorted(lists[key])) for key in PERMISSIONS if key in lists}
    if "vpn" in lists:
        values["vpns"] = tuple(sorted(lists["vpn"]))
    if "global_access" in lists:
        values["global_access"] = max(lists["global_access"])  # what permits most is the last by letters
    try:
        # A list that is not there permits nothing: a token that says only where its user may go permits no more.
        return _reader().validate_json(json.dumps({"publish": (), "consume": (), **values}))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise _not_good(f"its claim {claim!r} has a right that is none: {detail['msg']!s:.200}") from None


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name, which may contain points (a URL does); otherwise the value at this path of names."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    The header and the claims of a token whose signature was not verified: they can be anything.

    Raises:
        Refused: UNAUTHORIZED, it is not a signed token.
    """
    if len(token) > MOST_TOKEN_CHARACTERS:
        raise _not_good(f"it has more than {MOST_TOKEN_CHARACTERS:,} characters")
    if not re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", token, re.ASCII):
        raise _not_good("it is no signed JWT, three parts with points between them")
    try:
        parts = [json.loads(base64.urlsafe_b64decode(f"{part}===")) for part in token.split(".")[:2]]
    except (ValueError, RecursionError):
        parts = []
    match parts:
        case [dict(header), dict(claims)]:
            return header, claims
    raise _not_good(_UNREADABLE)


_UNREADABLE: Final = "it cannot be read"

_WRONG: Final = {
    "ExpiredSignatureError": "it has expired",
    "ImmatureSignatureError": "it is not valid yet",
    "InvalidAudienceError": "it is for another audience (aud)",
    "InvalidIssuerError": "it is another issuer's (iss)",
    "InvalidSignatureError": "its signature is not by the provider's key of its kid",
    "MissingRequiredClaimError": "it does not say until when it is valid, who gave it, and for whom (exp, iss, aud)",
}
"""Reasons for refusals, by the names of the library's errors, because not every gateway has the library."""


class Provider:
    """
    One identity provider.

    Args:
        settings: As configured; they never change.
        monotonic: Seconds of a clock that never goes back.
    """

    def __init__(self, settings: IdentityProvider, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.settings: Final = settings
        self._ask = Asking(settings)
        self._keys = Kept(f"the keys of {settings.issuer}", self._read_keys, monotonic)
        self._metadata = Kept(f"the metadata of {settings.issuer}", self._read_metadata, monotonic)

    def outdate(self) -> None:
        """The configuration was read again, so keys and metadata have to be read again, too."""
        self._keys.outdate()
        self._metadata.outdate()

    async def _read_keys(self) -> Sequence[_Key]:
        settings = self.settings
        if settings.jwks_file is not None:
            try:
                return _keys_of(json.loads(await asyncio.to_thread(settings.jwks_file.read_bytes)))
            except (OSError, ValueError, RecursionError) as error:
                raise Unavailable(f"{settings.jwks_file} cannot be read: {type(error).__name__}") from error
        url = settings.jwks_url
        if url is None:
            try:
                url = await self._endpoint("jwks_uri")
            except Refused as refused:
                raise Unavailable(refused.text) from refused
        return _keys_of(await self._ask(url))

    async def _read_metadata(self) -> Mapping[str, str]:
        issuer = self.settings.issuer
        found = await self._ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if not isinstance(found, dict) or found.get("issuer") != issuer:
            raise Unavailable("they are another issuer's")  # RFC 8414 section 3.3
        said = {key: found.get(key) for key in ("jwks_uri", "authorization_endpoint", "token_endpoint")}
        try:
            return {key: check_provider_url(url) for key, url in said.items() if isinstance(url, str)}
        except ValueError as error:
            raise Unavailable(f"a URL in them {error}") from None

    # --- tokens ---------------------------------------------------------------------------------------------------

    async def user_of(self, token: str) -> TokenUser:
        """
        The user whom a token for this gateway identifies.

        Raises:
            Refused: UNAUTHORIZED, the token is not valid; INTERNAL, the keys cannot be read now.
        """
        return self._user(await self._claims(token, self.settings.audience))

    async def _claims(self, token: str, audience: str) -> dict[str, Any]:
        import jwt  # noqa: PLC0415 - it comes with an extra

        header, _ = _parts(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _not_good(f"it is signed by {algorithm!r:.40}, and not by one of {', '.join(ALGORITHMS)}")
        if "crit" in header:
            raise _not_good("its header has extensions (crit), of which none is known here")
        if not isinstance(kid, str | None):
            raise _not_good("its kid is no text")
        key = await self._key(kid, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=audience,
                issuer=self.settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (
            Exception
        ) as error:  # whatever error the library raises for a stranger's token, the stranger is refused
            raise _not_good(_WRONG.get(type(error).__name__, _UNREADABLE)) from None
        return claims

    async def _key(self, kid: str | None, algorithm: str) -> _Key:
        """
        The key that a token names; if it names none, the only key of the kind that its algorithm needs.

        Raises:
            Refused: UNAUTHORIZED, there is no such key; INTERNAL, the keys cannot be read now.
        """
        for is_again in (False, True):
            if is_again:
                await self._keys.renew()
            keys = [key for key in await self._keys.value() if key.signs(algorithm)]
            found = (
                keys if kid is None and len(keys) == 1 else [key for key in keys if kid and key.kid == kid]
            )
            if found:
                return found[0]
        raise _not_good("the provider has no key of its kid for its algorithm")

    def _user(self, claims: Mapping[str, Any]) -> TokenUser:
        settings = self.settings
        name = _claim(claims, settings.user_claim)
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
            raise _not_good(f"its claim {settings.user_claim!r} is no name of 1 to {MOST_NAME} characters")
        try:
            is_spelled = normalise(name) == name
        except ValueError:
            is_spelled = False
        if not is_spelled or name == ANONYMOUS_USER:
            raise _not_good(f"its claim {settings.user_claim!r} is no user's name (SASLprep, RFC 4013)")
        said = permissions = None
        if settings.rights_claim is not None:
            said = _rights_of(_claim(claims, settings.rights_claim), settings.rights_claim)
        if said is not None:
            permissions = Permissions({Action(key): rules for key, rules in said.permissions().items()})
        return TokenUser(name, float(claims["exp"]), self, said, permissions)

    # --- the code flow of the console -----------------------------------------------------------------------------

    async def authorization_url(self, redirect_uri: str, secrets: FlowSecrets) -> str:
        """
        The URL at which a browser signs in (OpenID Connect Core section 3.1.2.1, RFC 7636 section 4.3).

        Raises:
            Refused: INTERNAL, the metadata cannot be read now, or have no such URL.
        """
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id or "",
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": secrets.state,
            "nonce": secrets.nonce,
            "code_challenge": _encoded_hash(secrets.verifier),
            "code_challenge_method": "S256",
        }
        url = await self._endpoint("authorization_endpoint")
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(asked)}"

    async def user_of_code(self, code: str, redirect_uri: str, secrets: FlowSecrets) -> TokenUser:
        """
        The user who came back from signing in, with a code that the provider exchanges for an ID token.

        Raises:
            Refused: UNAUTHORIZED, the code or the token is not valid; INTERNAL, the provider cannot be asked now.
        """
        settings = self.settings
        client_id = settings.client_id or ""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": secrets.verifier,
        }
        login, url = None, await self._endpoint("token_endpoint")
        try:
            if settings.client_secret_file is None:
                form["client_id"] = client_id
            else:
                secret = (await asyncio.to_thread(settings.client_secret_file.read_text)).strip()
                # RFC 6749 section 2.3.1: each is encoded first, as a form has it.
                login = (quote(client_id, safe=""), quote(secret, safe=""))
            answer = await self._ask(url, form, login)
        except (Unavailable, OSError, ValueError) as error:
            why = (
                error
                if isinstance(error, Unavailable)
                else f"{settings.client_secret_file}: {type(error).__name__}"
            )
            log.warning("provider_unavailable", **{log_keys.REASON: f"{settings.issuer}: {why}"})
            text = "the provider did not accept the code of this sign-in; sign in again"
            raise Refused(ErrorCode.UNAUTHORIZED, text) from None
        token = answer.get("id_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise _not_good("the provider gave none that says who somebody is (id_token)")
        claims = await self._claims(token, client_id)
        # Section 3.1.3.7: of this sign-in, and given to us.
        if claims.get("nonce") != secrets.nonce:
            raise _not_good("it is of another sign-in (nonce)")
        if claims.get("azp", client_id) != client_id:
            raise _not_good("it was given to somebody else (azp)")
        return self._user(claims)

    async def _endpoint(self, name: str) -> str:
        found = (await self._metadata.value()).get(name)
        if found is None:
            raise Refused(ErrorCode.INTERNAL, f"the provider's metadata have no {name}")
        return found


@dataclass(frozen=True, slots=True)
class FlowSecrets:
    """The secrets of one sign-in by the code flow: only the browser that began it has all three."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @classmethod
    def of(cls, secret: str, issuer: str) -> FlowSecrets:
        """Derive them from a secret that only the browser has; they differ between providers."""
        return cls(*(_encoded_hash(f"{what} {secret} {issuer}") for what in ("state", "nonce", "verifier")))


def _encoded_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def providers_of(
    settings: Sequence[IdentityProvider], before: Sequence[Provider] = ()
) -> tuple[Provider, ...]:
    """
    The providers of a gateway.

    Args:
        before: The previous providers. One whose settings have not changed stays, and so do the users of its tokens.
    """
    there = {provider.settings: provider for provider in before}
    for provider in before:
        provider.outdate()
    return tuple(there.get(its_settings) or Provider(its_settings) for its_settings in settings)


async def user_of(providers: Sequence[Provider], token: str) -> TokenUser:
    """
    The user whom a token identifies.

    Raises:
        Refused: UNAUTHORIZED, the token is not valid; INTERNAL, its provider's keys cannot be read now.
    """
    _, claims = _parts(token)
    for provider in providers:
        if provider.settings.issuer == claims.get("iss"):
            return await provider.user_of(token)
    raise _not_good("its issuer is none of the identity providers (iss)")
