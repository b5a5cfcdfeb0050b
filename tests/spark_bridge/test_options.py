"""Options: what they mean, and the sentence for each way to get one wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.amqp_client.wire import Broker
from spark_bridge.errors import OptionError
from spark_bridge.options import MEANINGS, Folder, Mode, Options, Schema, Selection, parse
from store.archive.errors import ConnectionFailed

pytestmark = pytest.mark.spark
URL = {"url": "amqp://broker:5673"}
EVERY = {
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


def test_every_option_is_understood() -> None:
    """Each documented option reaches the value it is documented for; with a url alone it is the whole log."""
    broker = Broker("broker", 5673, "trading", "ann", "/run/secret", tls=True, tls_ca="/ca")
    selection = Selection(("a/>", "b/*"), "#5", 9, 10, 20, fail_on_data_loss=False)
    assert parse(EVERY) == Options((broker,), (selection,), 3, 7, headers=False, archive=EVERY["archive"])
    assert EVERY.keys() | {"replayStart", "path", "dsn"} == MEANINGS.keys()
    assert parse(URL) == Options((Broker("broker", 5673),), (Selection((">",), "beginning"),))


@pytest.mark.parametrize(
    ("given_options", "address"),
    [
        ({"dsn": "host=h dbname=rewind"}, Schema("host=h dbname=rewind", "default")),
        (
            {"dsn": "postgresql://ann@a,b/rewind", "messageVpn": "v", "passwordFile": "/p"},
            Schema("postgresql://ann@a,b/rewind", "v", "/p"),
        ),
        ({"path": "/data", "messageVpn": "trading"}, Folder("/data", "trading")),
    ],
)
def test_a_log_is_where_its_option_says(given_options: dict[str, str], address: Schema | Folder) -> None:
    """A database, whose user is in its dsn and whose password in a file, or a file; of a Message VPN."""
    assert parse(given_options).addresses == (address,)


@pytest.mark.parametrize(
    ("given_options", "mode", "starts", "stops"),
    [
        ({"URL": "amqp://b", "STARTINGOFFSETS": "7"}, None, ["#7"], [None]),
        (URL | {"replayStart": "10m"}, None, ["10m"], [None]),
        (URL, "stream", ["live"], [None]),
        (URL, "batch", ["beginning"], [None]),
        (
            {"url": "amqp://a, amqp://b"}
            | {"startingOffsets": '{"0": 5, "1": -2}', "endingOffsets": '{"1": 9, "0": -1}'},
            None,
            ["#5", "beginning"],
            [None, 9],
        ),
    ],
)
def test_starts_and_ends(
    given_options: dict[str, str], mode: Mode | None, starts: list[str], stops: list[int | None]
) -> None:
    """
    The defaults are those of Spark's Kafka source, and so are names without case, and offsets by partition, -2 for
    earliest and -1 for latest. A replay start is the broker's to read.
    """
    selections = parse(given_options, mode).selections
    assert [selection.start for selection in selections] == starts
    assert [selection.stop for selection in selections] == stops
    assert [selection.partition for selection in selections] == list(range(len(starts)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"url": ""}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "broker:5672"}, "for example amqp://127.0.0.1:5672"),
        ({"url": "amqp://b:99999"}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "amqp://b,amqp://b:5672"}, "one of them is there twice"),
        ({"path": "/data"}, "Options url and path both name a log"),
        ({"path": "amqp://broker"}, "it is a URI; a broker's goes into the option url"),
        ({"dsn": "host=h"}, "Options url and dsn both name a log"),
        ({"dsn": "host=h", "path": "/data"}, "Options url and path and dsn all name a log"),
        ({"dsn": "mysql://h/rewind"}, "for example postgresql://"),
        ({"dsn": "host=h", "user": "ann"}, "dsn says who reads by itself"),
        ({"dsn": "host=h", "tlsCa": "/ca"}, "dsn says whom to trust (sslrootcert) by itself"),
        ({"path": "/data", "user": "ann", "passwordFile": "/x"}, "Option user belongs to a url"),
        ({"tlsCa": "/ca"}, "Option tlsCa needs a url with amqps://"),
        ({"messageVpn": "../x"}, "is no name of a Message VPN"),
        ({"startingTimestamp": "yesterday"}, "a whole number of milliseconds"),
        ({"startingTimestamp": "253402300800000"}, "up to the year 9999"),
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
        ({"replayStart": "last:5", "subscribe": "a,b"}, "last:N takes one topic in subscribe"),
        ({"replayStart": "last:5", "subscribe": "a?"}, "last:N takes one topic in subscribe"),
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
    with pytest.raises(OptionError, match=r"^\[REWIND_OPTION\] ") as caught:
        parse(({} if change.keys() == {"path", "user", "passwordFile"} else URL) | change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["url", "dsn", "archive"])
def test_credentials_in_an_option_are_not_repeated(name: str) -> None:
    """What is wrong with an option is said without what may be a password."""
    with pytest.raises(OptionError) as caught:
        parse({name: "amqp://ann:s3cret@b", "minPartitions": "many"})
    assert "s3cret" not in str(caught.value)


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


def test_all_problems_are_told_at_once() -> None:
    """Someone with three mistakes does not have to try three times; of nothing, the url is missing."""
    with pytest.raises(OptionError) as caught:
        parse({"url": "x", "minPartitions": "many", "colour": "red"})
    assert all(name in str(caught.value) for name in ("url", "minPartitions", "colour"))
    with pytest.raises(OptionError, match=r"Option url is missing: amqp://host:port or"):
        parse({})


@given(st.dictionaries(st.sampled_from([*MEANINGS, "other"]), st.text(max_size=12)))
def test_any_options_give_a_value_or_an_option_error(options: dict[str, str]) -> None:
    """No text whatever makes the parser fail in another way."""
    try:
        assert isinstance(parse(options), Options)
    except OptionError as error:
        assert error.sentence


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    """An editor's line end is no part of the password, and blanks in it are; a worker without the file names it."""
    path = tmp_path / "secret"
    path.write_bytes(b" s p\xc3\xa4 \r\nsecond\n")
    assert Broker("b", 1, user="ann", password_file=str(path)).password() == " s p\u00e4 "
    path.unlink()
    with pytest.raises(ConnectionFailed, match=f"The passwordFile {path} cannot be read: No such file"):
        Broker("b", 1, user="ann", password_file=str(path)).password()


def test_an_ipv6_host_is_bracketed_again() -> None:
    """The url in messages is one a user can paste."""
    assert parse({"url": "amqp://[::1]:7"}).broker.url == "amqp://[::1]:7"
