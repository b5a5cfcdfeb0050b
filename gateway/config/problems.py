"""What is wrong with a configuration: problems with their places, and the rules over several settings."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from amqp_ext.sasl import ANONYMOUS_USER
from gateway.config import toml
from gateway.config.setting_types import check_provider_url, is_loopback
from gateway.config.settings import Listener, Settings, User, authority
from gateway.config.vpn import QUEUE_KEYS, Queue, ReplayLog, Vpn, has_password
from gateway.core.endpoint.settings import MOST_IDS, EndpointKind, circle_of, told, way_of


class ConfigError(ValueError):
    """A configuration cannot be used.

    ``problems`` has a sentence for each thing that is wrong, beginning with the setting's path in the file
    (``vpn.default.queue.orders.quota_mb``) or the option's name on the command line (``--listen``).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong at ``path``; ``says`` ends the sentence that the path begins.

    ``given`` are the paths of other settings on which the problem depends.
    """

    path: str
    says: str
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path} {self.says}"

    def may_follow_from(self, other: "ConfigProblem") -> bool:
        """Whether ``other`` is about a setting this one builds on, or a table around it or within it."""
        return any(_overlap(_steps(path), _steps(other.path)) for path in (self.path, *self.given))


def unrelated(problems: Iterable[ConfigProblem], reported: Sequence[ConfigProblem]) -> list[ConfigProblem]:
    """Those of ``problems`` that cannot be a mere consequence of one already reported."""
    return [
        problem for problem in problems if not any(problem.may_follow_from(earlier) for earlier in reported)
    ]


def _overlap(one: list[str], other: list[str]) -> bool:
    return all(ours == theirs for ours, theirs in zip(one, other, strict=False))


def _steps(path: str) -> list[str]:
    return path.replace("[", ".[").split(".")


At: TypeAlias = Callable[..., str]
"""The path of a setting below a table's, by the steps from there."""


def _at(*steps: str | int) -> str:
    return toml.dotted(steps)


def broken_rules(settings: Settings) -> Iterator[ConfigProblem]:
    """Every rule that ``settings`` breaks."""
    if not settings.listeners:
        yield ConfigProblem("listener", "is empty; name at least one address")
    for index, listener in enumerate(settings.listeners):
        yield from _listener(settings, listener, f"listener[{index}]")
    yield from _shared_addresses(settings)
    yield from _admin(settings)
    yield from _users(settings)
    yield from _identity_providers(settings)
    yield from _vpns(settings)
    if settings.store.checkpoint_mb > settings.store.wal_limit_mb:
        yield ConfigProblem(
            "store.checkpoint_mb",
            "is above store.wal_limit_mb; make it the smaller of the two",
            ("store.wal_limit_mb",),
        )


def _listener(settings: Settings, listener: Listener, path: str) -> Iterator[ConfigProblem]:
    offered = settings.mechanisms(listener)
    can_verify = listener.tls is not None and listener.tls.client_ca is not None
    if not offered and settings.has_users and not settings.accepts_tokens(listener):
        have_certificates = any(user.certificate_names for user in settings.users.values())
        yield ConfigProblem(
            f"{path}.sasl",
            "leaves no way to log in: users with certificates only need the listener's `tls.client_ca`"
            if have_certificates
            else "leaves no way to log in: tokens of identity providers need the listener's `tls`, or loopback"
            if settings.identity_providers
            else "leaves no way to log in: tokens are for the administration; give a user a `password`",
            given=("user", f"{path}.tls"),
        )
    if (
        "ANONYMOUS" in offered
        and not is_loopback(listener.host)
        and not settings.allow_anonymous_beyond_loopback
    ):
        remedy = "take ANONYMOUS out of `sasl`" if settings.has_users else "configure users (`[user.NAME]`)"
        yield ConfigProblem(
            f"{path}.host",
            f"{listener.host} would let anyone on other machines connect; {remedy}, listen on loopback, or "
            "set `allow_anonymous_beyond_loopback = true`",
            given=("user", f"{path}.sasl", "allow_anonymous_beyond_loopback"),
        )
    elif "ANONYMOUS" in offered and settings.has_users and ANONYMOUS_USER not in settings.users:
        yield ConfigProblem(
            f"{path}.sasl",
            "has ANONYMOUS, and there are users; say in a `[user.anonymous]` what clients without a name may "
            "do",
            given=("user",),
        )
    if "EXTERNAL" in offered and not can_verify:
        yield ConfigProblem(
            f"{path}.sasl",
            "has EXTERNAL, which needs `tls.client_ca` to check certificates",
            (f"{path}.tls",),
        )
    if listener.tls and listener.tls.require_client_certificate and not can_verify:
        yield ConfigProblem(f"{path}.tls.require_client_certificate", "needs `client_ca` to check them")
    for mechanism in offered:
        if mechanism in ("OAUTHBEARER", "XOAUTH2"):
            if not settings.identity_providers:
                says = f"has {mechanism}, which needs an `[[identity_provider]]`"
                yield ConfigProblem(f"{path}.sasl", says, ("identity_provider",))
        elif mechanism != "ANONYMOUS" and not (
            settings.users
            or (mechanism == "PLAIN" and listener.rabbitmq_mode and settings.identity_providers)
        ):
            yield ConfigProblem(f"{path}.sasl", f"has {mechanism}, which needs a `[user.NAME]`", ("user",))


def _shared_addresses(settings: Settings) -> Iterator[ConfigProblem]:
    taken = {(settings.admin.host, settings.admin.port): "admin"} if settings.admin.port else {}
    for index, listener in enumerate(settings.listeners):
        path, address = f"listener[{index}]", (listener.host, listener.port)
        if address in taken:
            yield ConfigProblem(
                f"{path}.port",
                f"is taken: {taken[address]} has {authority(*address)} already",
                (taken[address], path),
            )
        elif listener.port:
            taken[address] = path


def _admin(settings: Settings) -> Iterator[ConfigProblem]:
    host = settings.admin.host
    if not (is_loopback(host) or settings.has_users or settings.allow_anonymous_beyond_loopback):
        yield ConfigProblem(
            "admin.host",
            f"{host} would let anyone on other machines administer; configure users (`[user.NAME]`), use loopback, "
            "or set `allow_anonymous_beyond_loopback = true`",
            given=("user", "allow_anonymous_beyond_loopback"),
        )
    tls = settings.admin.tls
    if tls and tls.require_client_certificate and not tls.client_ca:
        yield ConfigProblem("admin.tls.require_client_certificate", "needs `client_ca` to check them")


def _users(settings: Settings) -> Iterator[ConfigProblem]:
    owners = Counter(name for user in settings.users.values() for name in set(user.certificate_names))
    for name, user in settings.users.items():
        path = toml.dotted(["user", name])
        for key in ("password", "token"):
            if getattr(user, key) is not None and getattr(user, f"{key}_file") is not None:
                yield ConfigProblem(
                    f"{path}.{key}_file", f"is set together with `{key}`; keep one of the two"
                )
        # With identity providers, a token may name this user.
        has_token = user.token or user.token_file or user.sas_key_file or settings.identity_providers
        if not (user.password or user.password_file or user.certificate_names or has_token):
            if name != ANONYMOUS_USER:
                yield ConfigProblem(
                    path,
                    "cannot log in; give it `password`, `password_file`, `certificate_names`, or for the "
                    "administration `token` or `token_file`",
                )
            elif not any("ANONYMOUS" in listener.sasl for listener in settings.listeners):
                yield ConfigProblem(
                    path, "is for clients without a name, but no listener has ANONYMOUS in `sasl`"
                )
        yield from _permissions(user, path)
        for vpn in user.vpns:
            if vpn not in settings.vpns:
                table = toml.dotted(["vpn", vpn])
                yield ConfigProblem(
                    f"{path}.vpns", f"names {vpn}, which does not exist; add `[{table}]`", (table,)
                )
        for certificate in user.certificate_names:
            if owners[certificate] > 1:
                yield ConfigProblem(
                    f"{path}.certificate_names", f"has {certificate}, which is another user's too"
                )


def _identity_providers(settings: Settings) -> Iterator[ConfigProblem]:
    issuers: set[str] = set()
    for index, provider in enumerate(settings.identity_providers):
        path = f"identity_provider[{index}]"
        if provider.issuer in issuers:
            yield ConfigProblem(
                f"{path}.issuer", "is another provider's, too; tokens cannot tell the two apart"
            )
        issuers.add(provider.issuer)
        if provider.jwks_file is not None and provider.jwks_url is not None:
            yield ConfigProblem(f"{path}.jwks_url", "is set together with `jwks_file`; keep one of the two")
        if provider.client_secret_file is not None and provider.client_id is None:
            yield ConfigProblem(f"{path}.client_secret_file", "belongs to a `client_id`, which is missing")
        if "openid" not in provider.scopes:
            yield ConfigProblem(
                f"{path}.scopes", "needs `openid`: without it a provider does not say who the user is"
            )
        if provider.client_id is not None or (provider.jwks_file is None and provider.jwks_url is None):
            try:
                check_provider_url(provider.issuer)
            except ValueError as error:
                says = f"{error}: the provider's metadata are read there"
                yield ConfigProblem(f"{path}.issuer", says, (f"{path}.jwks_file", f"{path}.jwks_url"))


def _permissions(user: User, path: str) -> Iterator[ConfigProblem]:
    for key, rules in user.permissions().items():
        if rules and all(rule.startswith("!") for rule in rules):
            yield ConfigProblem(
                f"{path}.{key}",
                "has only exceptions, which permit nothing; add what they are exceptions to, such as "
                "`queue://>`",
            )
    if user.replay and not user.consume:
        yield ConfigProblem(
            f"{path}.replay",
            "permits nothing without `consume`: what is replayed is consumed",
            (f"{path}.consume",),
        )


def _vpns(settings: Settings) -> Iterator[ConfigProblem]:
    if not any(vpn.enabled for vpn in settings.vpns.values()):
        yield ConfigProblem("vpn", "has no enabled Message VPN, so no client could connect")
    for name, vpn in settings.vpns.items():
        at = partial(_at, "vpn", name)
        yield from _log(vpn.replay_log, at)
        if vpn.store is not None and vpn.store.password_file is not None and has_password(vpn.store.url):
            yield ConfigProblem(
                at("store", "password_file"), "is set together with a password in `url`; keep one of the two"
            )
        if vpn.archive is not None and not (vpn.archive.place or vpn.archive.to):
            yield ConfigProblem(at("archive"), "needs `from`, where it is read, or `to`, where it is written")
        if vpn.store is not None and vpn.store.standby_reads and vpn.store.read_url is None:
            yield ConfigProblem(
                at("store", "standby_reads"), "needs `read_url`: it names the standby that is read"
            )
        for label, target in vpn.replay_targets.items():
            path = at("replay_target", label)
            if (target.user is None) != (target.password_file is None):
                yield ConfigProblem(path, "has only one of `user` and `password_file`; give both, or none")
            if target.tls_ca is not None and not target.url.startswith("amqps://"):
                yield ConfigProblem(f"{path}.tls_ca", "is for TLS; write `amqps://` in `url`")
        yield from _dead_letter_circles(vpn, at)
        remembered = sum(queue.settings.dedup_window for queue in vpn.queues.values())
        if remembered > MOST_IDS:
            yield ConfigProblem(
                at("queue"),
                f"has queues with `dedup_window`s of {remembered} messages together; a Message VPN may have "
                f"{MOST_IDS}",
            )
        for queue_name, queue in vpn.queues.items():
            yield from _queue(vpn, queue, queue_name, at)


ON_LAST_VALUES: Final = frozenset({"quota_bytes", "quota_messages", "max_ttl_ms", "value_key"})
"""Settings that a last-value queue has, and a stream has not."""


def _log(log: ReplayLog, at: At) -> Iterator[ConfigProblem]:
    for indexed, count in Counter(log.index).items():
        if count > 1:
            path = at("replay_log", "index")
            yield ConfigProblem(path, f"names {indexed} {count} times; once is enough")
    for place, rule in enumerate(log.retention):
        if all(topic.startswith("!") for topic in rule.topics):
            path = at("replay_log", "retention", place, "topics")
            yield ConfigProblem(path, "has only exceptions; add the topics that the rule is about")


def _queue(vpn: Vpn, queue: Queue, name: str, at: At) -> Iterator[ConfigProblem]:
    if EndpointKind(queue.kind).is_view:
        yield from _view(vpn, queue, name, at)
    said = queue.settings
    if said.dead_message_queue == name:
        yield ConfigProblem(
            at("queue", name, "dead_message_queue"),
            "is the queue itself, whose dead messages would come back; name another queue",
        )
    if said.default_start != "live" and not vpn.replay_log.enabled:
        yield ConfigProblem(
            at("queue", name, "default_start"),
            f"is {said.default_start}, which needs `replay_log.enabled`",
            (at("replay_log"),),
        )
    if said.dedup_window_ms and not said.dedup_window:
        path = at("queue", name, "dedup_window")
        yield ConfigProblem(
            at("queue", name, "dedup_window_ms"),
            "limits the age of the ids that `dedup_window` remembers; set `dedup_window`, too",
            (path,),
        )


def _dead_letter_circles(vpn: Vpn, at: At) -> Iterator[ConfigProblem]:
    ways = {
        name: way
        for name, queue in vpn.queues.items()
        if (
            way := way_of(
                name, EndpointKind(queue.kind), queue.settings.dead_message_queue, queue.subscriptions
            )
        )
    }
    for name, way in ways.items():
        circle = circle_of(name, ways)
        # A queue that is its own dead message queue is reported elsewhere; one sentence is enough for a circle.
        if circle and way.queue != name and name == min(circle):
            yield ConfigProblem(
                at("queue", name, "dead_message_queue"),
                f"brings dead messages back, from {told(circle)}; give one of them another dead message queue",
            )


def _view(vpn: Vpn, queue: Queue, name: str, at: At) -> Iterator[ConfigProblem]:
    """A view of the log: settings for messages on a queue make no sense there."""
    is_valued = queue.kind == EndpointKind.LAST_VALUE.value
    for found in QUEUE_KEYS:
        instead = found.setting.on_streams
        if is_valued and found.setting.name in ON_LAST_VALUES:
            continue
        if instead and getattr(queue, found.key) != found.default:
            path = at("queue", name, found.key)
            what = "last-value queue" if is_valued else "stream"
            yield ConfigProblem(path, f"makes no sense on a {what}, which holds no messages: {instead}")
    if not vpn.replay_log.enabled:
        yield ConfigProblem(
            at("queue", name, "kind"),
            f"is {queue.kind}, a view of the log, which needs `replay_log.enabled`",
            (at("replay_log"),),
        )
