"""Permissions in the configuration: what is taken, and what is refused in which words."""

from __future__ import annotations

import pytest

from amqp_ext.sasl.passwords import hash_password
from gateway.config import ConfigError, User, parse
from gateway.config.settings import PERMISSIONS
from gateway.core.permissions import Action

HASH = hash_password("secret", salt=b"0123456789abcdef")
ANN = f'[user.ann]\npassword = "{HASH}"\n'
OPEN_LISTENER = '[[listener]]\nsasl = ["ANONYMOUS"]\n'


def problems(text: str) -> list[str]:
    """Every sentence said about a configuration that must be refused."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    return refused.value.problems


def test_every_action_has_its_list() -> None:
    """The lists of a user are the actions there are."""
    assert [action.value for action in Action] == list(PERMISSIONS)
    assert set(PERMISSIONS) <= set(User.__dataclass_fields__)


def test_lists_are_read_as_they_stand() -> None:
    """Lists come as given; one that is not there is not an empty one."""
    user = parse(ANN + 'publish = ["topic://a/>", "!topic://a/b"]\nreplay = []').users["ann"]
    assert user.permissions() == {"publish": ("topic://a/>", "!topic://a/b"), "replay": ()}
    assert User().permissions() == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'publish = ["orders"]',
            "user.ann.publish[0] is wrong: 'orders' does not say of what it is a pattern",
        ),
        (
            'publish = ["queue://a", "log://a"]',
            "user.ann.publish[1] is wrong: 'log://a' is nothing to publish to; what can be permitted here is "
            "`queue://` or `topic://`",
        ),
        ('consume = ["topic://a//b"]', "user.ann.consume[0] is wrong: 'topic://a//b' is no pattern"),
        ('browse = ["topic://a"]', "user.ann.browse[0] is wrong: 'topic://a' is nothing to browse"),
        ('replay = ["log://a"]', "user.ann.replay[0] is wrong: 'log://a' is nothing to replay"),
        ('administer = "queue://a"', 'user.ann.administer should be an array, not "queue://a"'),
        ("consumes = []", "user.ann.consumes is not a setting; did you mean `consume`?"),
        ('publish = ["!queue://a"]', "user.ann.publish has exceptions alone, which permit nothing"),
        ('replay = ["queue://a"]', "user.ann.replay permits nothing without `consume`"),
        ('replay = ["queue://a"]\nconsume = []', "user.ann.replay permits nothing without `consume`"),
    ],
)
def test_a_rule_that_cannot_mean_anything_is_refused(text: str, sentence: str) -> None:
    """A rule that would silently permit nothing, or something else, is an error that says what would be right."""
    (problem,) = problems(ANN + text)
    assert problem.startswith(sentence)


def test_problems_of_permissions_come_with_all_others() -> None:
    """Wrong rules of several users are reported in one run, and no consequences of them."""
    first, second = problems(
        ANN + 'consume = ["a"]\nreplay = ["queue://a"]\n' + "[user.bob]\npublish = ['b']\nbrowse = []"
    )
    assert first.startswith("user.ann.consume[0] is wrong")
    assert second.startswith("user.bob.publish[0] is wrong")


def test_clients_without_a_name_have_rules_where_there_are_users() -> None:
    """ANONYMOUS beside users would get around every rule, so it has to be said what such clients may do."""
    (problem,) = problems(OPEN_LISTENER + ANN)
    assert problem.startswith("listener[0].sasl has ANONYMOUS beside users; say in a `[user.anonymous]`")
    settings = parse(OPEN_LISTENER + ANN + '[user.anonymous]\nconsume = ["log://>"]')
    assert settings.users["anonymous"].permissions() == {"consume": ("log://>",)}


def test_rules_for_clients_without_a_name_need_such_clients() -> None:
    """`[user.anonymous]` is a user that can log in only where a listener offers ANONYMOUS."""
    (problem,) = problems(ANN + "[user.anonymous]\nconsume = []")
    assert (
        problem == "user.anonymous stands for clients without a name, but no listener has ANONYMOUS in `sasl`"
    )
