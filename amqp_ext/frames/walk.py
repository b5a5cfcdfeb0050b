"""
A walk over all frames of a connection's peer, before the engine gets them (AMQP 1.0 sections 2.3 to 2.7).

An engine may silently accept what the specification forbids, or close the connection where only a session should end.
The walk knows which channels have sessions and which handles have links. It cuts out frames that break the rules, and
gives the caller a ``Finding`` to act on; other findings report what an engine keeps to itself. All other frames are
handed on unchanged, except for symbolic descriptors, which an engine may not know, for credit above ``MOST_CREDIT``,
and for the delivery-ids of a peer that numbers deliveries per link (``SeparateIds``).

Invariants: the work is bounded by the octets received. Memory is bounded by the largest frame, by the handles that the
peer has in use, and by the unsettled deliveries of a peer that numbers them per link (``renumbered_count``). Octets
that are no frames are handed on: the engine reports what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from amqp_ext.codec import CodecError, Symbol, UInt, decode
from amqp_ext.frames.delivery_ids import ID_MODULUS, SeparateIds
from amqp_ext.frames.flow import StateRequest, fields_of, frames_of, state_request_of
from amqp_ext.frames.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    EnforcementPolicy,
    FieldError,
    PolicyError,
    checked,
    code_of,
    described,
    framed,
    numbered,
    read_policy,
)
from amqp_ext.frames.plain import link_key, plain_frames
from amqp_ext.frames.termini import DECODE_ERROR, INVALID_FIELD, AttachedTermini, read_termini


@dataclass(frozen=True, slots=True)
class BadConnection:
    """The connection is to be closed with this error; nothing more is read."""

    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class BadSession:
    """The peer's session on this channel is to end with this error; then the peer's end is awaited."""

    channel: int
    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class BadLink:
    """The peer's link at this handle is to be detached with this error."""

    channel: int
    handle: int
    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class Retirement:
    """
    A disposition that gives deliveries an outcome in a transaction. The transaction must not be committed if one of the
    deliveries is no longer held.

    Attributes:
        count: How many deliveries the disposition's range has.
    """

    channel: int
    txn_id: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Separation:
    """
    The peer begins to number the deliveries of a session per link. From now on, the engine's output has to pass through
    ``FrameWalk.in_peers_ids``. This finding precedes the transfer that shows it.
    """


Finding = StateRequest | BadConnection | BadSession | BadLink | Retirement | Separation


HEADER_BYTES: Final = 8
PROTOCOL_HEADER: Final = b"AMQP"
LEAST_FRAME_BYTES: Final = 512
"""No peer may ask for smaller frames (section 2.7.1)."""
MOST_CREDIT: Final = 2**31 - 1
"""An engine may take more credit than this for a negative number."""

_FLOW_MARK: Final = b"\x00\x53\x13"
_MOST_GROWTH: Final = 10
"""The most octets that a transfer grows by with another delivery-id: a wide uint, and a wide size and count of the
list, in place of the smallest forms."""
_TXN_ID: Final = Symbol("txn-id")
_TRANSACTIONAL: Final = 0x34
_SECOND: Final = 1
"""The rcv-settle-mode in which the receiver settles after the sender."""

FRAMING_ERROR: Final = "amqp:connection:framing-error"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"

Piece = tuple["bytes | memoryview", "Finding | None"]
"""Whole frames for the engine, and what is to be done once the engine has taken them."""

Skip = Callable[[bytes, int, set[int], set[int], dict[int, int]], int]
"""``plain_frames``, or the same in C."""


class Attached(NamedTuple):
    """An attach that was handed on to the engine."""

    channel: int
    handle: int
    termini: AttachedTermini
    size_bytes: int
    """Of its frame."""


@dataclass(slots=True)
class _Channel:
    """
    One session of the peer.

    Attributes:
        next_outgoing: The last next-outgoing-id of the peer.
        next_incoming: The last next-incoming-id of the peer; None if it has sent none yet.
    """

    next_outgoing: int
    next_incoming: int | None = None
    handles: dict[int, bool] = field(default_factory=dict)
    """Handles in use, and whether the peer receives on them."""
    is_over: bool = False
    """We have ended the session: its frames are dropped until the peer has ended it, too."""
    separate_ids: SeparateIds | None = None
    """The translation of its delivery-ids, once the peer is seen to number them per link."""


class FrameWalk:
    """
    Args:
        largest_bytes: The largest frame; a frame that declares a larger size is left to the engine.
        most_handles: How many handles a peer may use in a session (``handle-max`` is one less).
        skip: Finds the end of the frames that need no closer look.
    """

    def __init__(self, largest_bytes: int, most_handles: int, skip: Skip = plain_frames) -> None:
        self._largest = largest_bytes
        self._most_handles = most_handles
        self._skip = skip
        self._held = bytearray()
        """The beginning of a frame that is not whole."""
        self._needed_bytes = 0
        self._is_blind = False
        """The octets are no frame: everything from there on is handed on unread."""
        self._is_over = False
        """The connection is to be closed: nothing more is handed on."""
        self._channels: dict[int, _Channel] = {}
        self._begun: set[int] = set()
        """Links on which the peer has sent deliveries, and may begin another."""
        self._continued: set[int] = set()
        """Links on which the peer has begun a delivery and not completed it."""
        self._formats: dict[int, int] = {}
        """The message-formats of those deliveries, by link."""
        self._next_ids: dict[int, int] = {}
        """The next delivery-id of each channel, from its first delivery on; not of sessions that number per link."""
        self._unanswered: list[_Channel] = []
        """Sessions that the engine has not answered yet, in order."""
        self._answered: dict[int, _Channel] = {}
        """By each channel of ours, the last session that was answered on it."""
        self.sole_connection: EnforcementPolicy | None = None
        """The policy that the peer's open asks for with regard to other connections of its container."""
        # Lists, as they are mostly empty: an empty deque takes ten times as much, in every idle connection.
        self.begun_channels: list[int] = []
        """Channels of begins that were handed on; the handler of a new session takes the first."""
        self.attached: list[Attached] = []
        """Attaches that were handed on; the handler of a new link takes the first."""

    @property
    def held_bytes(self) -> int:
        """How many octets have come of a frame that is not whole."""
        return len(self._held)

    @property
    def renumbered_count(self) -> int:
        """How many unsettled deliveries are held with the peer's own ids."""
        return sum(
            len(session.separate_ids)
            for session in self._channels.values()
            if session.separate_ids is not None
        )

    def pieces_of(self, data: bytes) -> list[Piece]:
        """
        What is to be done for received octets, in order. Each piece has frames for the engine: up to and including a
        frame with a finding, or up to a frame that was cut out.
        """
        if self._is_over:
            return []
        if self._is_blind:
            return [(data, None)]
        if self._held:
            # In one buffer: octets that come one by one do not cost an object each.
            self._held += data
            if len(self._held) < self._needed_bytes:
                return []
            data = bytes(self._held)
            self._held.clear()
        return list(self._walk(data))

    def _walk(self, data: bytes) -> Iterator[Piece]:
        start = position = 0
        end = len(data)
        request: StateRequest | None = None
        while end - position >= HEADER_BYTES:
            position = self._skip(data, position, self._begun, self._continued, self._next_ids)
            if end - position < HEADER_BYTES:
                break
            size = self._size_at(data, position)
            if size is None:
                self._is_blind = True
                position = end
                break
            if end - position < size:
                break
            frame = data[position : position + size]
            if request is not None and frame[8:11] == _FLOW_MARK:
                # The frames after the request are in its piece, too: engines write a drain before the settlements that
                # make room for the messages it asks for.
                yield memoryview(data)[start:position], request
                start, request = position, None
            handed_on, finding = self._look(frame)
            if handed_on is frame and (finding is None or isinstance(finding, StateRequest)):
                if finding is not None and request is not None:
                    yield memoryview(data)[start:position], request
                    start = position
                request = finding or request
                position += size
                continue
            if position > start or request is not None:
                yield memoryview(data)[start:position], request
            if isinstance(finding, Separation):
                yield b"", finding
                finding = None
            request = None
            start = position = position + size
            if handed_on or finding is not None:
                yield handed_on, finding
            if self._is_over:
                return
        if position > start or request is not None:
            yield memoryview(data)[start:position], request
        if position < end:
            self._hold(data[position:])

    def _size_at(self, data: bytes, position: int) -> int | None:
        """Bytes of the frame or protocol header at a position; None if there is neither."""
        if data.startswith(PROTOCOL_HEADER, position):
            return HEADER_BYTES
        size = int.from_bytes(data[position : position + 4], "big")
        return size if HEADER_BYTES <= size <= self._largest else None

    def _hold(self, rest: bytes) -> None:
        self._held += rest
        size = self._size_at(rest, 0) if len(rest) >= HEADER_BYTES else None
        self._needed_bytes = size or HEADER_BYTES

    # --- one frame ------------------------------------------------------------------------------------------------

    def _look(self, frame: bytes) -> tuple[bytes, Finding | None]:
        """What the engine gets of a frame (the frame itself if nothing has to be changed), and the finding."""
        start = frame[4] * 4
        if not HEADER_BYTES <= start < len(frame) or frame[5] != 0 or frame.startswith(PROTOCOL_HEADER):
            return frame, None
        try:
            performative, behind = decode(frame, start)
        except CodecError as error:
            # An engine may take what we refuse, such as values without a bound on the work they cause.
            return b"", self._bad_connection(DECODE_ERROR, f"a frame cannot be decoded: {error}")
        code = code_of(performative)
        channel = int.from_bytes(frame[6:8], "big")
        session = self._channels.get(channel)
        if code is None or (session is None and code not in (OPEN, BEGIN)):
            # The engine reports what is wrong with these; a close may come on any channel.
            return self._by_number(frame, start, behind, performative), None
        if session is not None and session.is_over and code not in (END, CLOSE):
            return b"", self._begun_over(channel) if code == BEGIN else None
        try:
            fields = checked(code, performative.value)
        except FieldError as error:
            condition = INVALID_FIELD if error.is_missing else DECODE_ERROR
            if code in (OPEN, BEGIN, END, CLOSE) or session is None:
                return b"", self._bad_connection(condition, str(error))
            return b"", self._bad_session(channel, condition, str(error))
        found = self._found_in(code, channel, fields, len(frame))
        if isinstance(found, BadConnection | BadSession | BadLink):
            return b"", found
        ids = None if session is None else session.separate_ids
        if ids is not None and code == DISPOSITION and not fields[0]:
            # It does not say which link's deliveries it is about. Nothing is lost by dropping it: we settle first
            # (section 2.6.12), and a peer that settles before us does not need our outcome.
            return b"", None
        newest = None if ids is None or code != TRANSFER else ids.newest(fields[0])
        if newest is not None:
            return self._in_engines_ids(frame, start, behind, performative, newest[1]), found
        if code == FLOW and fields[6] is not None and fields[6] > MOST_CREDIT:
            less = [*performative.value[:6], UInt(MOST_CREDIT), *performative.value[7:]]
            return framed(frame, start, FLOW, less, behind), found
        return self._by_number(frame, start, behind, performative), found

    def _in_engines_ids(self, frame: bytes, start: int, behind: int, performative: Any, own: int) -> bytes:
        """The transfer with the engine's delivery-id ``own``."""
        handle, _, *rest = numbered(performative).value
        # A frame that an id could make too large gets none: the engine then takes the next one.
        said = UInt(own) if len(frame) <= self._largest - _MOST_GROWTH else None
        return framed(frame, start, TRANSFER, [handle, said, *rest], behind)

    def _found_in(self, code: int, channel: int, fields: list[Any], size: int) -> Finding | None:
        session = self._channels.get(channel)
        if code == OPEN:
            return self._open(channel, fields)
        if code == BEGIN:
            return self._begin(channel, fields)
        if session is None:
            return None
        if code == ATTACH:
            return self._attach(channel, session, fields, size)
        if code == FLOW:
            return self._flow(channel, session, fields)
        if code == TRANSFER:
            return self._transfer(channel, session, fields)
        if code == DISPOSITION:
            return self._disposition(channel, fields)
        if code == DETACH:
            return self._detach(channel, session, fields)
        if code == END:
            self._forget(channel, session)
            del self._channels[channel]
        return None

    def _by_number(self, frame: bytes, start: int, behind: int, performative: Any) -> bytes:
        """The frame with numeric descriptors; the frame itself if it has no symbolic ones that are known here."""
        if b"\x00\xa3" not in frame and b"\x00\xb3" not in frame:
            return frame
        same = numbered(performative)
        return frame if same == performative else framed(frame, start, same.descriptor, same.value, behind)

    # --- performatives --------------------------------------------------------------------------------------------

    def _open(self, channel: int, fields: list[Any]) -> Finding | None:
        if channel != 0:
            return self._bad_connection(FRAMING_ERROR, f"an open comes on channel 0, not on {channel}")
        if fields[2] is not None and fields[2] < LEAST_FRAME_BYTES:
            problem = f"a max-frame-size is {LEAST_FRAME_BYTES} or more, not {fields[2]}"
            return self._bad_connection(FRAMING_ERROR, problem)
        try:
            self.sole_connection = read_policy(fields[8], fields[9])
        except PolicyError as error:
            return self._bad_connection(INVALID_FIELD, str(error))
        return None

    def _begin(self, channel: int, fields: list[Any]) -> Finding | None:
        if channel in self._channels:
            return self._begun_over(channel)
        session = self._channels[channel] = _Channel(fields[1])
        self._unanswered.append(session)
        self.begun_channels.append(channel)
        return None

    def _begun_over(self, channel: int) -> BadConnection:
        return self._bad_connection(
            NOT_ALLOWED, f"a session has begun on channel {channel} already, and has not ended"
        )

    def _attach(self, channel: int, session: _Channel, fields: list[Any], size: int) -> Finding | None:
        handle, peer_receives = fields[1], fields[2]
        if handle in session.handles:
            # Section 2.7.3 ends the connection for this, not only the session.
            return self._bad_connection(HANDLE_IN_USE, f"a link is attached to handle {handle} already")
        if handle >= self._most_handles:
            problem = (
                f"handle {handle} is past our handle-max, {self._most_handles - 1} (max_links_per_session)"
            )
            return self._bad_connection(FRAMING_ERROR, problem)
        session.handles[handle] = peer_receives
        self.attached.append(Attached(channel, handle, read_termini(fields[5], fields[6]), size))
        return None

    def _detach(self, channel: int, session: _Channel, fields: list[Any]) -> Finding | None:
        handle = fields[0]
        if handle not in session.handles:
            return self._unattached(channel, handle)
        self._forget_link(channel, session, handle)
        del session.handles[handle]
        return None

    def _flow(self, channel: int, session: _Channel, fields: list[Any]) -> Finding | None:
        if _is_behind(fields[2], session.next_outgoing):
            return self._rewound(channel, "next-outgoing-id", session.next_outgoing, fields[2])
        session.next_outgoing = fields[2]
        if fields[0] is not None:
            if session.next_incoming is not None and _is_behind(fields[0], session.next_incoming):
                return self._rewound(channel, "next-incoming-id", session.next_incoming, fields[0])
            session.next_incoming = fields[0]
        handle, properties = fields[4], fields[10]
        if handle is not None and handle not in session.handles:
            return self._unattached(channel, handle)
        if handle is not None and properties and properties.get(_TXN_ID) is not None:
            problem = "acquiring messages in a transaction is not supported: leave txn-id out of the flow"
            return BadLink(channel, handle, NOT_IMPLEMENTED, problem)
        return state_request_of(fields)

    def _transfer(self, channel: int, session: _Channel, fields: list[Any]) -> Finding | None:
        handle, number, tag, form, settled, more, mode, _, _, aborted, _ = fields[:11]
        if handle not in session.handles:
            return self._unattached(channel, handle)
        if session.handles[handle]:
            # The peer sends on a link on which it receives; the engine reports that.
            return None
        if mode == _SECOND and settled is not True:
            problem = "a transfer has rcv-settle-mode second, but the gateway answered its link with first"
            return self._bad_session(channel, INVALID_FIELD, problem)
        key = link_key(channel, handle)
        if key in self._continued:
            begun_as = self._formats.get(key)
            if form is not None and begun_as is not None and form != begun_as:
                problem = f"a delivery began with message-format {begun_as}, and continues with {form}"
                return self._bad_session(channel, INVALID_FIELD, problem)
            ids = session.separate_ids
            newest = None if ids is None else ids.newest(handle)
            if ids is not None and newest is not None:
                begun_with, own = newest
                if number is not None and number != begun_with:
                    problem = f"a delivery began with delivery-id {begun_with}, and continues with {number}"
                    return self._bad_session(channel, INVALID_FIELD, problem)
                if settled or aborted:
                    ids.settle(own)
            if not more or aborted:
                self._drop(key)
                self._begun.add(key)
            return None
        if number is None or tag is None:
            problem = "the first transfer of a delivery needs a delivery-id and a delivery-tag"
            return self._bad_session(channel, INVALID_FIELD, problem)
        found = self._count(channel, handle, number, is_settled=bool(settled or aborted))
        if isinstance(found, BadSession):
            return found
        self._begun.add(key)
        if more and not aborted:
            self._begun.discard(key)
            self._continued.add(key)
            if form is not None:
                self._formats[key] = form
        return found

    def _count(self, channel: int, handle: int, number: int, *, is_settled: bool) -> Finding | None:
        """The peer begins a delivery with this delivery-id."""
        session, found = self._channels[channel], None
        if session.separate_ids is None:
            next_id = self._next_ids.get(channel, number)
            if number == next_id or link_key(channel, handle) in self._begun:
                # If a link that has sent before leaves ids out, the engine reports that.
                self._next_ids[channel] = (next_id + 1) % ID_MODULUS
                return None
            del self._next_ids[channel]
            session.separate_ids, found = SeparateIds(next_id), Separation()
        due = session.separate_ids.begin(handle, number, is_settled=is_settled)
        if due is not None:
            problem = f"delivery-ids rise by one: {due} is next on the link at handle {handle}, not {number}"
            return self._bad_session(channel, INVALID_FIELD, problem)
        return found

    def _disposition(self, channel: int, fields: list[Any]) -> Finding | None:
        peer_receives, first, last, _, state = fields[:5]
        count = ((first if last is None else last) - first) % 2**32 + 1
        if count > 2**31:
            return self._bad_session(
                channel, INVALID_FIELD, f"a disposition's range is from {first} to {last}: it is empty"
            )
        code, said = described(state)
        if not peer_receives or code != _TRANSACTIONAL or not isinstance(said, list) or not said:
            return None
        return Retirement(channel, said[0], count) if isinstance(said[0], bytes) else None

    # --- the engine's output --------------------------------------------------------------------------------------

    def saw_begins(self, output: bytes) -> bytes:
        """Note in the engine's output, whole frames, which channel of ours answers which session of the peer."""
        for frame in frames_of(output):
            if self._unanswered and fields_of(frame, BEGIN) is not None:
                self._answered[int.from_bytes(frame[6:8], "big")] = self._unanswered.pop(0)
        return output

    def in_peers_ids(self, output: bytes) -> bytes:
        """The engine's output, whole frames, with the peer's delivery-ids in the dispositions."""
        return b"".join(map(self._in_peers_ids, frames_of(output)))

    def _in_peers_ids(self, frame: bytes) -> bytes:
        session = self._answered.get(int.from_bytes(frame[6:8], "big"))
        ids = None if session is None else session.separate_ids
        fields = None if ids is None else fields_of(frame, DISPOSITION)
        if ids is None or fields is None or not fields[0]:
            return frame
        first, last, rest = fields[1], fields[2] if len(fields) > 2 else None, fields[3:]
        return b"".join(
            framed(frame, HEADER_BYTES, DISPOSITION, [True, UInt(begin), UInt(end), *rest], len(frame))
            for begin, end in ids.settle_range(first, first if last is None else last)
        )

    # --- findings -------------------------------------------------------------------------------------------------

    def _unattached(self, channel: int, handle: int) -> BadSession:
        return self._bad_session(channel, UNATTACHED_HANDLE, f"no link is attached to handle {handle}")

    def _rewound(self, channel: int, field: str, was: int, now: int) -> BadSession:
        return self._bad_session(
            channel, WINDOW_VIOLATION, f"the {field} of a flow is {now}, and was {was}: it must not go back"
        )

    def _bad_connection(self, condition: str, text: str) -> BadConnection:
        self._is_over = True
        return BadConnection(condition, text)

    def _bad_session(self, channel: int, condition: str, text: str) -> BadSession:
        session = self._channels[channel]
        self._forget(channel, session)
        session.is_over = True
        return BadSession(channel, condition, text)

    def _forget(self, channel: int, session: _Channel) -> None:
        for handle in session.handles:
            self._forget_link(channel, session, handle)
        session.handles.clear()
        self._next_ids.pop(channel, None)

    def _forget_link(self, channel: int, session: _Channel, handle: int) -> None:
        self._drop(link_key(channel, handle))
        if session.separate_ids is not None:
            session.separate_ids.detach(handle)

    def _drop(self, key: int) -> None:
        self._begun.discard(key)
        self._continued.discard(key)
        self._formats.pop(key, None)


def _is_behind(number: int, other: int) -> bool:
    """Whether a transfer-id is lower than another one, by serial number arithmetic (RFC 1982)."""
    return (number - other) % 2**32 >= 2**31
