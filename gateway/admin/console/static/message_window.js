// The part of the log that a table shows: rows around a place, more at both ends as one scrolls, of the newest as they
// come, and never more than some thousand at once.

import { Unreachable, at, page } from "./api.js";
import { signal } from "./html.js";

/** Rows that are kept. */
export const MOST_ROWS = 5_000;

const PAGE = 200;
const LARGEST_PAGE = 1_000;

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
 * @property {string} start The lower bound, any replay start.
 * @property {string} until The upper bound; empty for none.
 * @property {string} place A replay start at which the rows begin to be shown; empty for the first in the order.
 *
 * @typedef {object} State
 * @property {Row[]} rows
 * @property {number} shift Rows put in front since the beginning, less those taken away there.
 * @property {boolean} isFirst Nothing comes before the rows.
 * @property {boolean} isLast Nothing comes after them.
 * @property {boolean} isLoading
 * @property {Error | null} error
 */

/** Rows of the log, ordered, which grow at both ends. */
export class MessageWindow {
  /** @param {Wanted} wanted */
  constructor(wanted) {
    this.wanted = wanted;
    this.state = signal(/** @type {State} */ ({ rows: [], shift: 0, isFirst: wanted.place === "", isLast: false, isLoading: true, error: null }));
    this._abort = new AbortController();
    this._busy = { first: false, last: false };
    /** @type {{first: string | null, last: string | null}} Where the gateway goes on, if it began to look there. */
    this._cursors = { first: null, last: null };
    this._path = at`monitor/msgVpns/${wanted.vpn}/replayLogs/default/msgs`;
    /** The id at which rows begin, where there is a place. */
    this.placeId = 0;
    this._isOpen = false;
  }

  /** Nothing more is asked for. */
  close() {
    this._abort.abort();
  }

  get isOldestFirst() {
    return this.wanted.order === "oldest";
  }

  /** The newest id that was looked at. */
  get newestId() {
    const { rows } = this.state.peek();
    return (this.isOldestFirst ? rows.at(-1) : rows[0])?.msgId ?? 0;
  }

  /** Load the first rows. */
  async open() {
    if (this.wanted.place) {
      try {
        const query = { ...this._conditions(), start: this.wanted.place, order: "oldest", count: 1 };
        const { rows } = await page(this._path, query, this._abort.signal);
        this.placeId = rows[0]?.msgId ?? 0;
        // Behind the last of them there is nothing: the newest are shown.
        if (!this.placeId) this.wanted = { ...this.wanted, place: "" };
      } catch (error) {
        this._failed(error);
        return;
      }
    }
    this._isOpen = true;
    await this.more("last");
  }

  /**
   * Load more rows at an end.
   * @param {"first" | "last"} end
   */
  async more(end) {
    const state = this.state.peek();
    if (!this._isOpen || this._busy[end] || this._abort.signal.aborted || (end === "first" ? state.isFirst : state.isLast)) return;
    this._busy[end] = true;
    try {
      const isAscending = (end === "last") === this.isOldestFirst;
      const found = await page(this._path, this._query(end, isAscending, state.rows), this._abort.signal);
      this._cursors[end] = found.cursor;
      this._add(end, found.rows, found.cursor === null);
    } catch (error) {
      this._failed(error);
    } finally {
      this._busy[end] = false;
    }
    // A page without rows is one of a rare topic: it is far away.
    const { rows, isLast, error } = this.state.peek();
    if (end === "last" && rows.length < PAGE && !isLast && !error) await this.more("last");
  }

  /**
   * Rows that came now, the oldest first.
   * @param {Row[]} rows
   */
  came(rows) {
    const after = this.newestId;
    const fresh = rows.filter((row) => row.msgId > after);
    if (fresh.length) this._add(this.isOldestFirst ? "last" : "first", this.isOldestFirst ? fresh : fresh.reverse(), true, true);
  }

  _conditions() {
    const { subscribe, selector } = this.wanted;
    return { subscribe: subscribe.length ? subscribe : null, selector: selector || null };
  }

  /**
   * @param {"first" | "last"} end
   * @param {boolean} isAscending
   * @param {Row[]} rows
   */
  _query(end, isAscending, rows) {
    const { start, until, place } = this.wanted;
    const order = isAscending ? "oldest" : "newest";
    const bounds = { start, until: until || null };
    const cursor = this._cursors[end];
    const edge = (end === "last" ? rows.at(-1) : rows[0])?.msgId;
    const count = cursor || edge ? Math.min(LARGEST_PAGE, Math.max(PAGE, rows.length)) : PAGE;
    if (cursor === null && edge !== undefined) {
      if (isAscending) bounds.start = `#${edge + 1}`;
      else bounds.until = `#${edge - 1}`;
    } else if (cursor === null && place) {
      if (isAscending) bounds.start = `#${this.placeId}`;
      else bounds.until = `#${this.placeId}`;
    }
    return { ...this._conditions(), ...bounds, order, count, cursor };
  }

  /**
   * @param {"first" | "last"} end
   * @param {Row[]} fresh In the order of the rows; of the first end, when they are not `live`, the nearest first.
   * @param {boolean} isEnd Nothing follows them.
   * @param {boolean} [isLive]
   */
  _add(end, fresh, isEnd, isLive = false) {
    const state = { ...this.state.peek(), isLoading: false, error: null };
    if (end === "last") {
      state.rows = state.rows.concat(fresh);
      state.isLast = isEnd;
      const beyond = state.rows.length - MOST_ROWS;
      if (beyond > 0) {
        state.rows = state.rows.slice(beyond);
        state.shift -= beyond;
        state.isFirst = false;
        this._cursors.first = null;
      }
    } else {
      state.rows = (isLive ? fresh : fresh.toReversed()).concat(state.rows);
      state.shift += fresh.length;
      state.isFirst = isEnd;
      if (state.rows.length > MOST_ROWS) {
        state.rows = state.rows.slice(0, MOST_ROWS);
        state.isLast = false;
        this._cursors.last = null;
      }
    }
    this.state.value = state;
  }

  /** @param {unknown} error */
  _failed(error) {
    if (this._abort.signal.aborted) return;
    const shown = error instanceof Unreachable ? null : /** @type {Error} */ (error);
    this.state.value = { ...this.state.peek(), isLoading: false, error: shown };
  }
}
