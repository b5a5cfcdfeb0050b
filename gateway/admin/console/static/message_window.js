// The part of the log that a table shows: rows around a place, more at both ends as one scrolls, of the newest as they
// come, and never more than some thousand at once. Where few messages match, the log is looked through a piece at a time:
// what is found is shown meanwhile, and one can stop.

import { Unreachable, at, get, page } from "./api.js";
import { signal } from "./html.js";

/** Rows that are kept. */
export const MOST_ROWS = 5_000;

const PAGE = 200;
const LARGEST_PAGE = 1_000;

/** Ids that one request looks through at most: so many that it takes about this long where few match. */
const FIRST_PIECE = 20_000;
const LARGEST_PIECE = 1_000_000;
const QUICK_MS = 400;
const SLOW_MS = 1_500;

/** Of the rows that are shown first while messages come live, the oldest first. */
const TAIL = 200;

/**
 * @typedef {object} Row As the gateway lists a message.
 * @property {number} msgId
 * @property {string} replicationGroupMsgId
 * @property {number} spooledTimeMs
 * @property {string} topic
 * @property {number} priority
 * @property {number} contentSize
 * @property {string} [contentType]
 * @property {boolean} [isErased]
 *
 * @typedef {object} Wanted
 * @property {string} vpn
 * @property {string[]} subscribe Topic patterns.
 * @property {string} selector
 * @property {"oldest" | "newest"} order Which message comes first.
 * @property {number | null} from The lower bound, ms.
 * @property {number | null} until The upper bound, ms.
 * @property {string} place A replay start at which the rows begin to be shown; empty for the first in the order.
 * @property {boolean} isTail They begin shortly before the newest.
 *
 * @typedef {object} State
 * @property {Row[]} rows
 * @property {number} shift Rows put in front since the beginning, less those taken away there.
 * @property {boolean} isFirst Nothing comes before the rows.
 * @property {boolean} isLast Nothing comes after them.
 * @property {boolean} isLoading
 * @property {number | null} lookedAt The id that was looked at last, while few match.
 * @property {boolean} isStopped
 * @property {Error | null} error
 *
 * @typedef {"first" | "last"} End
 */

/** Rows of the log, ordered, which grow at both ends. */
export class MessageWindow {
  /** @param {Wanted} wanted */
  constructor(wanted) {
    this.wanted = wanted;
    this.state = signal(/** @type {State} */ ({ rows: [], shift: 0, isFirst: true, isLast: false, isLoading: true, lookedAt: null, isStopped: false, error: null }));
    /** The ids between which it looks. */
    this.bounds = { first: 1, last: 0 };
    this._isOldestFirst = wanted.order === "oldest";
    this._isFiltered = wanted.subscribe.length > 0 || wanted.selector !== "";
    this._piece = FIRST_PIECE;
    /** The id that is looked at next at each end. */
    this._next = { first: 0, last: 0 };
    this._busy = { first: false, last: false };
    this._abort = new AbortController();
    this._isOpen = false;
    this._isAway = false;
    this._log = at`monitor/msgVpns/${wanted.vpn}/replayLogs/default`;
  }

  /** Nothing more is asked for. */
  close() {
    this._abort.abort();
  }

  /** Load the first rows. */
  async open() {
    const { from, until, place, isTail } = this.wanted;
    try {
      const found = await get(`${this._log}/histogram`, { from, until, buckets: 1 }, this._abort.signal);
      // What the archive alone has is not listed.
      this.bounds = { first: Math.max(found.firstMsgId, found.log?.oldestMsgId ?? 1), last: found.log ? found.lastMsgId : 0 };
      const { first, last } = this.bounds;
      let begin = this._isOldestFirst ? first : last;
      if (isTail) begin = Math.max(first, last - TAIL + 1);
      if (place) {
        const { rows } = await page(`${this._log}/msgs`, { start: place, order: "oldest", count: 1 }, this._abort.signal);
        // Behind the newest there is nothing yet.
        begin = Math.min(last, Math.max(first, rows[0]?.msgId ?? last));
      }
      this._next = { last: begin, first: this._isOldestFirst ? begin - 1 : begin + 1 };
      // Where it did not go well at first, some may have come live: they are among those that are loaded now.
      this.state.value = { ...this.state.peek(), rows: [], isFirst: this._isOver("first"), isLast: this._isOver("last"), error: null };
      this._isOpen = true;
    } catch (error) {
      this._failed(error);
      return;
    }
    await this.more("last");
    this.state.value = { ...this.state.peek(), isLoading: this._isAway };
  }

  /**
   * Load more rows at an end.
   * @param {End} end
   */
  async more(end) {
    const isOver = () => this._abort.signal.aborted || (end === "first" ? this.state.peek().isFirst : this.state.peek().isLast);
    if (!this._isOpen || this._busy[end] || this.state.peek().isStopped || isOver()) return;
    this._busy[end] = true;
    try {
      let found = 0;
      do {
        found += await this._step(end);
      } while (found < PAGE && !isOver() && !this.state.peek().isStopped);
    } catch (error) {
      this._failed(error);
    } finally {
      this._busy[end] = false;
    }
  }

  /** The gateway answers again: what was asked for while it was away is asked for now. */
  retry() {
    if (!this._isAway) return;
    this._isAway = false;
    void (this._isOpen ? this.more("last") : this.open());
  }

  /** Look no further; or, again, further. @param {boolean} isStopped */
  stop(isStopped) {
    this.state.value = { ...this.state.peek(), isStopped };
    if (!isStopped) void this.more("last");
  }

  /**
   * Rows that came now, the oldest first.
   * @param {Row[]} rows
   */
  came(rows) {
    const end = this._isOldestFirst ? "last" : "first";
    const fresh = rows.filter((row) => row.msgId >= this._next[end]);
    const newest = fresh.at(-1);
    if (!newest) return;
    this._next[end] = newest.msgId + 1;
    this.bounds.last = newest.msgId;
    this._add(end, this._isOldestFirst ? fresh : fresh.reverse());
  }

  /** @param {End} end */
  _isAscending(end) {
    return (end === "last") === this._isOldestFirst;
  }

  /** @param {End} end */
  _isOver(end) {
    return this._isAscending(end) ? this._next[end] > this.bounds.last : this._next[end] < this.bounds.first;
  }

  /**
   * One request; how many rows it brought.
   * @param {End} end
   */
  async _step(end) {
    const isAscending = this._isAscending(end);
    const next = this._next[end];
    // Who scrolls on has more at once.
    const count = Math.min(LARGEST_PAGE, Math.max(PAGE, this.state.peek().rows.length));
    const edge = isAscending ? Math.min(this.bounds.last, next + this._piece - 1) : Math.max(this.bounds.first, next - this._piece + 1);
    const { subscribe, selector } = this.wanted;
    const began = performance.now();
    const { rows, cursor } = await page(
      `${this._log}/msgs`,
      {
        subscribe: subscribe.length ? subscribe : null,
        selector: selector || null,
        firstMsgId: isAscending ? next : edge,
        lastMsgId: isAscending ? edge : next,
        order: isAscending ? "oldest" : "newest",
        count,
      },
      this._abort.signal,
    );
    const took = performance.now() - began;
    if (took < QUICK_MS) this._piece = Math.min(LARGEST_PIECE, this._piece * 2);
    if (took > SLOW_MS) this._piece = Math.max(FIRST_PIECE / 4, this._piece / 2);
    const last = cursor !== null ? rows.at(-1)?.msgId : undefined;
    this._next[end] = (last ?? edge) + (isAscending ? 1 : -1);
    this._add(end, end === "last" ? rows : rows.reverse());
    return rows.length;
  }

  /**
   * @param {End} end
   * @param {Row[]} fresh In the order of the rows.
   */
  _add(end, fresh) {
    const state = { ...this.state.peek(), error: null, lookedAt: this._isFiltered ? this._next[end] : null };
    state.rows = end === "last" ? state.rows.concat(fresh) : fresh.concat(state.rows);
    if (end === "first") state.shift += fresh.length;
    const beyond = state.rows.length - MOST_ROWS;
    if (beyond > 0) {
      // What leaves at the other end is asked for again when one scrolls there.
      const other = end === "last" ? "first" : "last";
      state.rows = other === "first" ? state.rows.slice(beyond) : state.rows.slice(0, MOST_ROWS);
      if (other === "first") state.shift -= beyond;
      const left = (other === "first" ? state.rows[0] : state.rows.at(-1))?.msgId ?? 0;
      this._next[other] = left + (this._isAscending(other) ? 1 : -1);
    }
    state.isFirst = this._isOver("first");
    state.isLast = this._isOver("last");
    if (fresh.length > 0 || state.isLast) state.isLoading = false;
    this.state.value = state;
  }

  /** @param {unknown} error */
  _failed(error) {
    if (this._abort.signal.aborted) return;
    this._isAway = error instanceof Unreachable;
    const shown = this._isAway ? null : /** @type {Error} */ (error);
    this.state.value = { ...this.state.peek(), isLoading: this._isAway && !this._isOpen, error: shown };
  }
}
