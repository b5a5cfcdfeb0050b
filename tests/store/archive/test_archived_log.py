"""The archive as the gateway reads it, compared with the list of messages that was archived."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from amqp_ext.codec import Symbol, encode
from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.log import ArchivedRun
from gateway.core.model import CONTENT, ID, TIME_MS, TOPIC, Row
from gateway.core.replay.search import Search, search_for
from store.archive.maintenance import compact
from store.archive.storage import ArchiveStorage, FolderStorage
from store.archive.table import ArchiveTable
from store.archived_log import ArchivedLog, shown
from store.errors import LogTrimmed, ReadFailed
from tests.store.archive.log_archive import write_segment
from tests.support.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, data, section

pytestmark = pytest.mark.spark

GENERATION = 7
MADE_MS = 1_800_000_000_000
TOPICS = ("a/1", "a/2", "b", "#queue/q")
PATTERNS: tuple[tuple[str, ...], ...] = ((), (">",), ("a/>",), ("b", "a/2"), ("a/>", "!a/1"), ("none",))


def logged(dice: random.Random, first: int, last: int) -> list[Row]:
    """Messages with ids from ``first`` to ``last``, some left out as not logged, with and without annotations."""
    rows: list[Row] = []
    for i in range(first, last + 1):
        if dice.random() < 0.2:
            continue
        front = section(MESSAGE_ANNOTATIONS, {Symbol("x-key"): i}) if dice.random() < 0.3 else b""
        properties = section(APPLICATION_PROPERTIES, {"n": i}) if dice.random() < 0.5 else b""
        content = front + properties + data(dice.choice([b"", b"x" * dice.randrange(40), str(i)]))
        rows.append((i, MADE_MS + i // 2, dice.choice(TOPICS), len(front), 0, None, content))
    return rows


class Archived:
    """An archive of random messages in random files."""

    def __init__(self, folder: Path, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.storage = FolderStorage(folder)
        self.first, self.last = dice.randrange(1, 20), 120
        self.rows = logged(dice, self.first, self.last)
        first = self.first
        while first <= self.last:
            last = min(first + dice.randrange(5, 40), self.last)
            piece = [row for row in self.rows if first <= row[ID] <= last]
            if piece:
                write_segment(self.storage, piece, first, last, GENERATION)
                first = last + 1
            else:
                self.last = first - 1
        self.rows = [row for row in self.rows if row[ID] <= self.last]
        self.log = ArchivedLog(
            str(folder), GENERATION, page_rows=dice.randrange(1, 9), page_bytes=dice.choice([1, 100, 10_000])
        )

    def pages(self, position: int, end: int, patterns: Sequence[str]) -> list[Row]:
        """The messages from ``position`` on and below ``end``, page by page."""
        found: list[Row] = []
        while position < end:
            page = self.log.log_page(position, end, patterns)
            assert position < page.position <= end
            assert all(position <= row[ID] < page.position for row in page.rows)
            found += page.rows
            position = page.position
        return found


@pytest.fixture(params=range(4))
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Archived:
    return Archived(tmp_path / "archive", request.param)


def test_pages_are_the_list(archived: Archived) -> None:
    """Pages give each message of a range once, in order, bit for bit, and leave out no matching topic."""
    for _ in range(30):
        position = archived.dice.randint(archived.first, archived.last)
        end = archived.dice.randint(position, archived.last + 1)
        patterns = archived.dice.choice(PATTERNS)
        matches = TopicFilter([TopicPattern.parse(p) for p in patterns], implicit_all=True).matches
        expected = [row for row in archived.rows if position <= row[ID] < end]
        found = archived.pages(position, end, patterns)
        assert [row for row in found if matches(row[TOPIC])] == [
            row for row in expected if matches(row[TOPIC])
        ]
        if patterns in ((), (">",)):
            assert found == expected


def test_a_search_finds_the_first_message(archived: Archived) -> None:
    """Whether the search can look for bytes of the message, or has to evaluate a selector on each message."""
    for _ in range(30):
        number = archived.dice.randint(1, 130)
        text = archived.dice.choice([f"n = {number}", f"n > {number}", f"n = {number} and n <> 0"])
        search = search_for(parse_text(f"match:{text}"), None)
        assert search is not None
        position = archived.dice.randint(archived.first, archived.last)
        expected = next((row[ID] for row in archived.rows if row[ID] >= position and search.takes(row)), None)
        assert _searched(archived, search, position) == expected


def _searched(archived: Archived, search: Search, position: int) -> int | None:
    while position <= archived.last:
        page = archived.log.search_page(search, position, archived.last + 1)
        if page.found is not None:
            return page.found
        assert page.position > position
        position = page.position
    return None


def test_probes_know_what_the_list_knows(archived: Archived) -> None:
    """Probed are a message's arrival time, the first since a time, the last on a topic, and counts and sizes."""
    log = archived.log
    assert log.look() == ArchivedRun(GENERATION, archived.first, archived.last, archived.rows[0][TIME_MS])
    for i in range(archived.first - 1, archived.last + 2):
        assert log.time_of(i) == next((row[TIME_MS] for row in archived.rows if row[ID] == i), None)
        since = MADE_MS + i // 2
        assert log.first_since(since) == next(
            (row[ID] for row in archived.rows if row[TIME_MS] >= since), None
        )
    for matches in (None, "b".__eq__, "none".__eq__):
        before, found = archived.last + 1, None
        while found is None and before > archived.first:
            found, before = log.last_page(matches, before)
        wanted = [row[ID] for row in archived.rows if matches is None or matches(row[TOPIC])]
        assert found == (wanted[-1] if wanted else None)
    times = [archived.rows[0][TIME_MS] - 1, *(row[TIME_MS] for row in archived.rows)]
    places = log.positions_since([*times, times[-1] + 1])
    assert places == sorted(places)  # within a file they are estimates
    assert (places[0], places[-1]) == (archived.first, archived.last + 1)
    counted: dict[str, list[int]] = {}
    position = archived.first
    while position <= archived.last:
        tally = log.tally(position, archived.last + 1)
        for topic, count, size in tally.found:
            sums = counted.setdefault(topic, [0, 0])
            sums[0] += count
            sums[1] += size
        position = tally.position
    expected: dict[str, list[int]] = {}
    for row in archived.rows:
        sums = expected.setdefault(row[TOPIC], [0, 0])
        sums[0] += 1
        sums[1] += len(row[CONTENT])
    assert counted == expected


@pytest.mark.parametrize("patterns", PATTERNS, ids=str)
def test_topics_come_newest_first(archived: Archived, patterns: tuple[str, ...]) -> None:
    """Each matching message comes once, in falling order of ids. Below the archive, LogTrimmed is raised."""
    parsed = [TopicPattern.parse(pattern) for pattern in patterns]
    matches = TopicFilter(parsed, implicit_all=True).matches
    for _ in range(10):
        first = archived.dice.randint(archived.first, archived.last)
        before = archived.dice.randint(first, archived.last) + 1
        expected = [
            (row[ID], row[TOPIC])
            for row in reversed(archived.rows)
            if first <= row[ID] < before and matches(row[TOPIC])
        ]
        found: list[tuple[int, str]] = []
        while before > first:
            page = archived.log.topics_below(before, first, patterns)
            assert first <= page.position < before
            assert all(page.position <= number < before for number, _ in page.found)
            found += [one for one in page.found if matches(one[1])]
            before = page.position
        assert found == expected
    with pytest.raises(LogTrimmed):
        archived.log.topics_below(archived.first, 0, patterns)


def test_messages_by_their_ids(archived: Archived) -> None:
    """A page has as many of them as fit, from the first on; ids without a message are left out."""
    there = {row[ID]: row for row in archived.rows}
    for _ in range(20):
        ids = sorted(archived.dice.sample(range(archived.first, archived.last + 1), 12))
        expected = [there[i] for i in ids if i in there]
        found = archived.log.messages(ids)
        assert found == expected[: len(found)]
        assert found or not expected


def test_what_is_compacted_is_read_in_its_place(archived: Archived) -> None:
    """A reader in the middle of a file that is compacted away goes on in the new file."""
    middle = archived.rows[len(archived.rows) // 2][ID]
    before = archived.pages(archived.first, middle, ())
    compact(archived.storage, is_all=True)
    assert len(ArchiveTable(archived.storage).refresh().segments) == 1
    assert before + archived.pages(middle, archived.last + 1, ()) == archived.rows
    assert archived.log.problem is None


@pytest.fixture
def one(tmp_path: Path) -> Archived:
    return Archived(tmp_path / "archive", 3)


def test_of_another_log_nothing_is_read(one: Archived) -> None:
    """An archive of another generation is reported as a problem, and none of its messages is returned."""
    other = ArchivedLog(one.log._where, GENERATION + 1, page_rows=10, page_bytes=1_000)
    assert other.look().generation == GENERATION
    assert other.problem == "it is of generation 7 of the log, but the log has generation 8"
    with pytest.raises(LogTrimmed):
        other.log_page(one.first, one.last, ())


def test_what_is_archived_meanwhile_is_seen(one: Archived) -> None:
    """For an id after the known end the table is read again; an id that is not there either raises LogTrimmed."""
    one.pages(one.first, one.last + 1, ())
    with pytest.raises(LogTrimmed):
        one.log.log_page(one.last + 1, one.last + 9, ())
    more = [replace_id(one.rows[0], one.last + 3)]
    write_segment(one.storage, more, one.last + 1, one.last + 5, GENERATION)
    assert one.pages(one.last + 1, one.last + 6, ()) == more


def replace_id(row: Row, message_id: int) -> Row:
    """The same message under another id."""
    return (message_id, *row[1:])  # type: ignore[return-value]


def test_a_gap_ends_the_run(one: Archived) -> None:
    """The run of ids begins after the gap, and says where the archive ends before it."""
    row = replace_id(one.rows[0], one.last + 12)
    write_segment(one.storage, [row], one.last + 10, one.last + 20, GENERATION)
    assert one.log.look() == ArchivedRun(GENERATION, one.last + 10, one.last + 20, row[TIME_MS], one.last)
    with pytest.raises(LogTrimmed):
        one.log.log_page(one.last + 1, one.last + 20, ())


def test_a_missing_file_is_a_problem_until_it_is_back(one: Archived) -> None:
    """A read of its ids fails rather than skipping them, and succeeds once the file is back."""
    segment = ArchiveTable(one.storage).refresh().segments[1]
    path = Path(one.log._where) / segment.file
    content = path.read_bytes()
    path.unlink()
    assert one.pages(one.first, segment.first, ())
    with pytest.raises(ReadFailed, match="is missing"):
        one.log.log_page(segment.first, one.last + 1, ())
    assert one.log.problem == f"{segment.file} is missing"
    path.write_bytes(content)
    assert one.pages(one.first, one.last + 1, ()) == one.rows
    assert one.log.problem is None


def test_no_changed_byte_is_delivered(tmp_path: Path) -> None:
    """Whichever byte of a file changes, a read returns what was archived, or fails."""
    failed = 0
    one = Archived(tmp_path / "archive", 5)
    segment = ArchiveTable(one.storage).refresh().segments[0]
    path = tmp_path / "archive" / segment.file
    content = path.read_bytes()
    expected = [row for row in one.rows if row[ID] <= segment.last]
    for place in range(0, len(content), 41):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x24]) + content[place + 1 :])
        log = ArchivedLog(str(tmp_path / "archive"), GENERATION, page_rows=10_000, page_bytes=1 << 30)
        one.log = log
        try:
            assert one.pages(segment.first, segment.last + 1, ()) == expected, place
        except ReadFailed:
            failed += 1
            assert log.problem is not None
        finally:
            log.close()
    assert failed > len(content) // 41 // 2


@pytest.mark.parametrize(
    ("field", "sentence"),
    [("rows", "rows, and the table says"), ("high", "ids that the table does not name")],
)
def test_a_file_that_is_not_the_tables_is_not_read(one: Archived, field: str, sentence: str) -> None:
    """A file whose rows or ids differ from the table's entry, as one put in its place has, is refused."""
    table = ArchiveTable(one.storage)
    first, *_ = table.refresh().segments
    name = first.file.replace(".parquet", "0.parquet")
    (Path(one.storage.where) / first.file).rename(Path(one.storage.where) / name)
    table.exchange([replace(first, file=name, **{field: first.low})], [first], is_erasing=False)
    with pytest.raises(ReadFailed, match=sentence):
        one.log.log_page(first.first, first.last + 1, ())


def test_an_archive_that_cannot_be_read_is_a_problem_until_it_can(tmp_path: Path) -> None:
    """A damaged commit is a problem until it is repaired."""
    one = Archived(tmp_path / "archive", 1)
    entry = next((tmp_path / "archive" / "_delta_log").glob("*1.json"))
    content = entry.read_bytes()
    entry.write_bytes(b"{")
    with pytest.raises(ReadFailed, match="cannot be used"):
        one.log.look()
    assert one.log.problem is not None
    entry.write_bytes(content)
    one.log.look()
    assert one.log.problem is None


def test_an_empty_place_is_an_empty_archive(tmp_path: Path) -> None:
    """Before the archiver's first run the place is empty: that is no problem."""
    log = ArchivedLog(str(tmp_path / "none"), GENERATION, page_rows=1, page_bytes=1)
    assert log.look() == ArchivedRun(None, 1, 0, 0)
    assert log.problem is None
    with pytest.raises(LogTrimmed):
        log.log_page(1, 2, ())


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/srv/archive", "/srv/archive"),
        ("s3://bucket/a/b?region=x&secret=y", "s3://bucket/a/b"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
    ],
)
def test_a_place_is_told_without_secrets(place: str, told: str) -> None:
    """Alarms show a URI without its credentials and parameters."""
    assert shown(place) == told


def test_encoded_text_is_found_in_annotations(tmp_path: Path) -> None:
    """A search finds bytes in the annotations, though the same bytes as body are stored in another column."""
    content = section(MESSAGE_ANNOTATIONS, {Symbol("x-key"): "xx"}) + data(b"x")
    assert encode("xx") in content
    row: Row = (1, MADE_MS, "a", len(content) - len(data(b"x")), 0, None, content)
    write_segment(FolderStorage(tmp_path), [row], 1, 1, GENERATION)
    log = ArchivedLog(str(tmp_path), GENERATION, page_rows=1, page_bytes=1)
    search = search_for(parse_text("match:\"m.x-key\" = 'xx'"), None)
    assert search is not None
    assert log.search_page(search, 1, 2).found == 1


def test_a_place_that_is_no_folder_is_read_alike(archived: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place behind one of pyarrow's file systems, such as a bucket, gives the same rows and errors as a folder."""

    def remote(where: str) -> ArchiveStorage:
        return ArchiveStorage(where, fs.LocalFileSystem(), where)

    monkeypatch.setattr("store.archived_log.storage_at", remote)
    archived.log = ArchivedLog(archived.log._where, GENERATION, page_rows=5, page_bytes=1_000)
    assert archived.pages(archived.first, archived.last + 1, ()) == archived.rows
    for segment in ArchiveTable(archived.storage).refresh().segments:
        archived.storage.remove(segment.file)
    other = ArchivedLog(archived.log._where, GENERATION, page_rows=5, page_bytes=1_000)
    with pytest.raises(ReadFailed, match="is missing"):
        other.log_page(archived.first, archived.last, ())
