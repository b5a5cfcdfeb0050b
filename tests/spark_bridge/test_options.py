"""Options: what they mean, and the sentence for each way to get one wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.amqp_client.wire import Broker
from spark_bridge.errors import OptionError
from spark_bridge.options import MEANINGS, Folder, Mode, Options, Schema, parse
from store.archive.errors import ConnectionFailed

pytestmark = pytest.mark.spark
URL = {"url": "amqp://broker:5673"}


def test_only_the_url_is_needed() -> None:
    """A read with nothing but a url is the whole log, anonymous, in as many partitions as there are cores."""
    assert parse(URL) == Options((Broker("broker", 5673),), (">",), "beginning", None, None)


def test_names_are_matched_without_case() -> None:
    """Spark hands option names over in lower case, and they mean the same."""
    assert parse({"URL": "amqp://b", "STARTINGOFFSETS": "7"}) == parse(
        {"url": "amqp://b", "startingOffsets": "7"}
    )


def test_every_option_is_understood() -> None:
    """Each documented option reaches the value it is documented for."""
    given_options = {
        "url": "amqps://broker:5673",
        "tlsCa": "/ca",
        "startingTimestamp": "10",
        "endingTimestamp": "20",
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "False",
        "includeHeaders": "false",
        "subscribe": "a/>, b/*",
        "startingOffsets": "5",
        "endingOffsets": "9",
        "minPartitions": "3",
        "messageVpn": "trading",
        "user": "ann",
        "passwordFile": "/run/secret",
        "archive": "s3://bucket/archive",
    }
    assert parse(given_options) == Options(
        (Broker("broker", 5673, "trading", "ann", "/run/secret", tls=True, tls_ca="/ca"),),
        ("a/>", "b/*"),
        "#5",
        9,
        3,
        since=10,
        before=20,
        per_trigger=7,
        fail_on_data_loss=False,
        headers=False,
        archive="s3://bucket/archive",
    )
    assert given_options.keys() | {"replayStart", "path", "dsn"} == MEANINGS.keys()


def test_a_database_is_named_by_its_dsn() -> None:
    """The Message VPN and the password's file go with it; the user is in it."""
    given_options = {"dsn": "postgresql://ann@a,b/rewind", "messageVpn": "v", "passwordFile": "/p"}
    assert parse(given_options).addresses == (Schema("postgresql://ann@a,b/rewind", "v", "/p"),)
    assert parse({"dsn": "host=h dbname=rewind"}).addresses == (Schema("host=h dbname=rewind", "default"),)


@pytest.mark.parametrize("name", ["url", "dsn", "archive"])
def test_credentials_in_an_option_are_not_repeated(name: str) -> None:
    """What is wrong with an option is said without what may be a password."""
    with pytest.raises(OptionError) as caught:
        parse({name: "amqp://ann:s3cret@b", "minPartitions": "many"})
    assert "s3cret" not in str(caught.value)


def test_a_replay_start_is_passed_on_as_it_is() -> None:
    """The broker reads replay start texts; the bridge only sees to it that they are some, at load."""
    assert parse(URL | {"replayStart": "10m"}).start == "10m"


def test_a_url_given_as_a_path_is_told_apart() -> None:
    """What `load("amqp://...")` becomes is no folder that is missing."""
    with pytest.raises(OptionError, match="it is a URI; a broker's goes into the option url"):
        parse({"path": "amqp://broker"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"url": ""}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "broker:5672"}, "for example amqp://127.0.0.1:5672"),
        ({"url": "amqp://b:99999"}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "amqp://b,amqp://b:5672"}, "one of them is there twice"),
        ({"path": "/data"}, "Options url and path both name a log"),
        ({"dsn": "host=h"}, "Options url and dsn both name a log"),
        ({"dsn": "host=h", "path": "/data"}, "Options url and path and dsn all name a log"),
        ({"dsn": "mysql://h/rewind"}, "for example postgresql://"),
        ({"dsn": "host=h", "user": "ann"}, "dsn says who reads by itself"),
        ({"dsn": "host=h", "tlsCa": "/ca"}, "dsn says whom to trust (sslrootcert) by itself"),
        ({"tlsCa": "/ca"}, "Option tlsCa needs a url with amqps://"),
        ({"messageVpn": "../x"}, "is no name of a Message VPN"),
        ({"startingTimestamp": "yesterday"}, "a whole number of milliseconds"),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "endingTimestamp=4 is before startingTimestamp=5",
        ),
        ({"startingTimestamp": "5", "replayStart": "10m"}, "both name a start"),
        ({"maxOffsetsPerTrigger": "0"}, "1 or more"),
        ({"failOnDataLoss": "maybe"}, "Option failOnDataLoss='maybe' is not true, or false"),
        ({"startingOffsets": '{"1": 5}'}, "it has to name each partition, 0 to 0"),
        ({"startingOffsets": '{"0": 1.5}'}, "a whole number below 2^63"),
        ({"endingOffsets": '{"0": -2}'}, "would read nothing"),
        ({"url": "amqp://ann:secret@b"}, "credentials go into the options user and passwordFile"),
        ({"startingOffsets": "-1"}, "a whole number below 2^63"),
        ({"startingOffsets": "9223372036854775808"}, "a whole number below 2^63"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "it has to name each partition, 0 to 0"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": "soon"}, "Option endingOffsets='soon' is not latest, the offset"),
        ({"subscribe": "a,,b"}, "needs at least one character"),
        ({"subscribe": "a//b"}, "cannot have an empty level"),
        ({"minPartitions": "0"}, "Option minPartitions='0' is not the number of partitions"),
        ({"minPartitions": "10001"}, "1 to 10000"),
        ({"replayStart": " "}, "it is empty"),
        ({"replayStart": "nonsense"}, "'nonsense' is not a replay start: a start is beginning, live, last"),
        ({"replayStart": "last", "subscribe": "a/>,!a/b"}, "where subscribe has an exception"),
        ({"replayStart": "live", "startingOffsets": "1"}, "both name a start"),
        ({"url": "amqp://b:0"}, "nobody listens on port 0"),
        ({"user": "ann"}, "belong together"),
        ({"passwordFile": "/x"}, "belong together"),
        ({"startingOffset": "1"}, "Option startingOffset is unknown; did you mean startingOffsets?"),
        ({"zzz": "1"}, "Option zzz is unknown; known options are url, path, dsn, archive"),
    ],
)
def test_a_bad_option_gets_a_sentence(change: dict[str, str], sentence: str) -> None:
    """Every mistake is named with the option, the value, and what would be right."""
    with pytest.raises(OptionError) as caught:
        parse(URL | change)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("[REWIND_OPTION] ")


@pytest.mark.parametrize(
    ("mode", "change", "sentence"),
    [
        ("batch", {"startingOffsets": "latest"}, "Option startingOffsets=latest is for streams"),
        ("batch", {"startingOffsets": '{"0": -1}'}, "Option startingOffsets=latest is for streams"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "Option maxOffsetsPerTrigger is for streams"),
        ("stream", {"endingOffsets": "5"}, "Option endingOffsets is for batches"),
        ("stream", {"endingTimestamp": "5"}, "Option endingTimestamp is for batches"),
    ],
)
def test_what_belongs_to_the_other_mode_is_refused(mode: Mode, change: dict[str, str], sentence: str) -> None:
    """Spark tells late whether a load is a batch or a stream: only then do these rules hold."""
    assert parse(URL | change)
    with pytest.raises(OptionError, match=sentence):
        parse(URL | change, mode)


def test_a_stream_starts_at_the_end_and_a_batch_at_the_beginning() -> None:
    """The defaults are those of Spark's Kafka source."""
    assert (parse(URL, "stream").start, parse(URL, "batch").start) == ("live", "beginning")


def test_several_urls_may_have_offsets_each() -> None:
    """By partition, with Kafka's -2 for earliest and -1 for latest."""
    options = parse(
        {
            "url": "amqp://a, amqp://b",
            "startingOffsets": '{"0": 5, "1": -2}',
            "endingOffsets": '{"1": 9, "0": -1}',
        }
    )
    assert [address.url for address in options.addresses] == ["amqp://a:5672", "amqp://b:5672"]
    assert [options.selection(place).start for place in (0, 1)] == ["#5", "beginning"]
    assert [options.selection(place).stop for place in (0, 1)] == [None, 9]


def test_a_path_is_a_file_of_a_vpn() -> None:
    """A folder names the Message VPN's file in it, and takes no login."""
    assert parse({"path": "/data", "messageVpn": "trading"}).addresses == (Folder("/data", "trading"),)
    with pytest.raises(OptionError, match="Option user belongs to a url"):
        parse({"path": "/data", "user": "ann", "passwordFile": "/x"})


def test_a_missing_url_is_named() -> None:
    """Without a url there is nothing to read from, and the error says so."""
    with pytest.raises(OptionError, match=r"Option url is missing: amqp://host:port or"):
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
