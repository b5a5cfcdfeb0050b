"""The table of errors, on which the wire, administration and the documents rely."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.semp.envelope import refusal
from gateway.core.errors import ErrorCode, Refused

SOURCES = Path(__file__).parents[3] / "gateway"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_row_is_whole(code: ErrorCode) -> None:
    """A condition is a symbol of AMQP's, a replay-error comes with its subcode, and the documents have a case."""
    assert code.condition.startswith("amqp:")
    assert (code.replay_error is None) is (code.subcode is None)
    assert code.case
    assert code.case[-1] != "."


def test_no_row_stands_for_another() -> None:
    """Rows that are alike on the wire are still two; subcodes and replay-errors are those of one row each."""
    assert len(ErrorCode.__members__) == len(list(ErrorCode))
    for told in ("subcode", "replay_error"):
        values = [value for code in ErrorCode if (value := getattr(code, told)) is not None]
        assert len(values) == len(set(values))


def test_every_row_is_used() -> None:
    """A row that nothing raises is a promise that nobody keeps."""
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "errors.py")
    assert [code.name for code in ErrorCode if f"ErrorCode.{code.name}" not in text] == []


def test_what_exists_already_is_told_by_its_code() -> None:
    """Administration tells Solace's ALREADY_EXISTS by the code, whatever the text says."""
    assert refusal(Refused(ErrorCode.ALREADY_EXISTS, "taken")).status == "ALREADY_EXISTS"
    assert refusal(Refused(ErrorCode.PRECONDITION_FAILED, "it exists already")).status == "NOT_ALLOWED"
    assert ErrorCode.ALREADY_EXISTS.condition == ErrorCode.PRECONDITION_FAILED.condition
