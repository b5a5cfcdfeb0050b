"""Options: what they mean, and the sentence for each way to get one wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.errors import ConnectionFailed, OptionError
from spark_bridge.options import MEANINGS, Broker, Options, parse

pytestmark = pytest.mark.spark
URL = {"url": "amqp://broker:5673"}


def test_only_the_url_is_needed() -> None:
    """A read with nothing but a url is the whole log, anonymous, in as many partitions as there are cores."""
    assert parse(URL) == Options(Broker("broker", 5673), (">",), "beginning", None, None)


def test_names_are_matched_without_case() -> None:
    """Spark hands option names over in lower case, and they mean the same."""
    assert parse({"URL": "amqp://b", "STARTINGOFFSETS": "7"}) == parse(
        {"url": "amqp://b", "startingOffsets": "7"}
    )


def test_every_option_is_understood() -> None:
    """Each documented option reaches the value it is documented for."""
    given_options = URL | {
        "subscribe": "a/>, b/*",
        "startingOffsets": "5",
        "endingOffsets": "9",
        "minPartitions": "3",
        "messageVpn": "trading",
        "user": "ann",
        "passwordFile": "/run/secret",
    }
    assert parse(given_options) == Options(
        Broker("broker", 5673, "trading", "ann", "/run/secret"), ("a/>", "b/*"), "#5", 9, 3
    )
    assert given_options.keys() | {"replayStart"} == MEANINGS.keys()


def test_a_replay_start_is_passed_on_as_it_is() -> None:
    """The broker reads replay start texts; the bridge does not second-guess them."""
    assert parse(URL | {"replayStart": "10m"}).start == "10m"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"url": ""}, "is not amqp://host:port"),
        ({"url": "broker:5672"}, "for example amqp://127.0.0.1:5672"),
        ({"url": "amqp://b:99999"}, "is not amqp://host:port"),
        ({"url": "amqps://b"}, "TLS is not supported here"),
        ({"url": "amqp://ann:secret@b"}, "credentials go into the options user and passwordFile"),
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"startingOffsets": "-1"}, "a whole number below 2^63"),
        ({"startingOffsets": "9223372036854775808"}, "a whole number below 2^63"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "a whole number below 2^63"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": "soon"}, "Option endingOffsets='soon' is not latest, or the offset"),
        ({"subscribe": "a,,b"}, "needs at least one character"),
        ({"subscribe": "a//b"}, "cannot have an empty level"),
        ({"minPartitions": "0"}, "Option minPartitions='0' is not the number of partitions"),
        ({"minPartitions": "10001"}, "1 to 10000"),
        ({"replayStart": " "}, "it is empty"),
        ({"replayStart": "live", "startingOffsets": "1"}, "both name a start"),
        ({"user": "ann"}, "belong together"),
        ({"passwordFile": "/x"}, "belong together"),
        ({"startingOffset": "1"}, "Option startingOffset is unknown; did you mean startingOffsets?"),
        ({"zzz": "1"}, "Option zzz is unknown; known options are url, subscribe"),
    ],
)
def test_a_bad_option_gets_a_sentence(change: dict[str, str], sentence: str) -> None:
    """Every mistake is named with the option, the value, and what would be right."""
    with pytest.raises(OptionError) as caught:
        parse(URL | change)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("[REWIND_OPTION] ")


def test_a_missing_url_is_named() -> None:
    """Without a url there is nothing to read from, and the error says so."""
    with pytest.raises(OptionError, match=r"Option url is missing: amqp://host:port of the broker\."):
        parse({})


def test_all_problems_are_told_at_once() -> None:
    """Someone with three mistakes does not have to try three times."""
    with pytest.raises(OptionError) as caught:
        parse({"url": "x", "minPartitions": "many", "colour": "red"})
    assert all(name in str(caught.value) for name in ("url", "minPartitions", "colour"))


@given(st.dictionaries(st.sampled_from([*MEANINGS, "other"]), st.text(max_size=12)))
def test_any_options_give_a_value_or_an_option_error(options: dict[str, str]) -> None:
    """No text whatever makes the parser fail in another way."""
    try:
        assert isinstance(parse(options), Options)
    except OptionError as error:
        assert error.sentence


def test_a_password_is_the_first_line_of_its_file(tmp_path) -> None:
    """An editor's line end is no part of the password, and blanks in it are."""
    path = tmp_path / "secret"
    path.write_bytes(b" s p\xc3\xa4 \r\nsecond\n")
    assert Broker("b", 1, user="ann", password_file=str(path)).password() == " s p\u00e4 "


def test_an_unreadable_password_file_is_named(tmp_path) -> None:
    """A worker without the file says which file it misses."""
    path = tmp_path / "none"
    with pytest.raises(ConnectionFailed, match=f"The passwordFile {path} cannot be read: No such file"):
        Broker("b", 1, user="ann", password_file=str(path)).password()


def test_an_ipv6_host_is_bracketed_again() -> None:
    """The url in messages is one a user can paste."""
    assert parse({"url": "amqp://[::1]:7"}).broker.url == "amqp://[::1]:7"
