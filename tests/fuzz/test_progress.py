"""Numbers are handed out once, also over a stop; what was left comes again."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.progress import Progress


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """Seed, counts and the next number are the file's; what was under way is handed out again."""
    first = Progress(tmp_path / "state.json", seed=7)
    done, under_way = first.take("frames", 10), first.take("frames", 10)
    first.finish("frames", done, 10)
    first.save()

    second = Progress(tmp_path / "state.json")

    assert (second.seed, second.counts) == (7, {"frames": 10})
    assert [second.take("frames", 10), second.take("frames", 10)] == [under_way, range(20, 30)]


def test_what_a_connection_did_not_get_to_comes_again(tmp_path: Path) -> None:
    """Behind the input that ended a connection others were sent that nobody read."""
    progress = Progress(tmp_path / "state.json", seed=1)
    taken = progress.take("addresses", 100)
    progress.finish("addresses", taken, 40)

    assert progress.counts == {"addresses": 40}
    assert progress.take("addresses", 25) == range(40, 65)
    assert progress.take("addresses", 100) == range(65, 100)
    assert progress.under_way() == [("addresses", range(40, 65)), ("addresses", range(65, 100))]


def test_who_begins_anew_has_another_seed_and_no_counts(tmp_path: Path) -> None:
    """``--fresh``, and a seed that is not the file's; the file's own seed goes on."""
    file = tmp_path / "state.json"
    first = Progress(file, seed=7)
    first.finish("http", first.take("http", 5), 5)
    first.save()

    assert Progress(file, is_fresh=True).counts == {}
    assert Progress(file, seed=8).counts == {}
    assert Progress(file, seed=7).counts == {"http": 5}
