"""What a configuration may say of indexed properties and of starts that are searched for."""

from __future__ import annotations

import pytest

from gateway.config import ConfigError, parse


def test_properties_to_be_indexed_are_named() -> None:
    """`index` takes names of fields and of application properties, in the order they are given."""
    settings = parse('[vpn.default.replay_log]\nindex = ["message-id", "trade id"]')
    assert settings.vpns["default"].replay_log.index == ("message-id", "trade id")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('replay_log.index = ["a", "a"]', r"vpn\.default\.replay_log\.index names a 2 times; once is enough"),
        ('replay_log.index = [" "]', r"index\[0\] is wrong: a property's name is not empty"),
        ('queue.q.default_start = "match:a ="', r"default_start is wrong: .*at character 4 of the selector"),
    ],
)
def test_what_could_not_work_is_refused(line: str, problem: str) -> None:
    """A property named twice or not at all, and a default start whose selector is none, are errors of the file."""
    with pytest.raises(ConfigError, match=problem):
        parse(f"[vpn.default]\n{line}")
