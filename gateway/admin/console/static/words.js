// Numbers, sizes and times in words, as the command line says them: what a person reads in place of bytes and
// milliseconds. The exact value belongs in the title of the element.

const MEGABYTE = 1 << 20;
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** @type {[number, string][]} */
const SIZES = [
  [2 ** 50, "PB"],
  [2 ** 40, "TB"],
  [2 ** 30, "GB"],
  [MEGABYTE, "MB"],
  [1024, "kB"],
];

/** @type {[number, string][]} */
const TIMES = [
  [365 * DAY_MS, "year"],
  [DAY_MS, "day"],
  [HOUR_MS, "hour"],
  [MINUTE_MS, "minute"],
  [1_000, "second"],
];

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/**
 * With separators, `1,234,567`; a fraction to one digit.
 * @param {number} count
 */
export function number(count) {
  return Number.isInteger(count) ? whole.format(count) : tenths.format(count);
}

/**
 * A count and its noun: `1 message`, `1,200 messages`.
 * @param {number} count
 * @param {string} thing
 * @param {string} [things]
 */
export function counted(count, thing, things) {
  return `${number(count)} ${count === 1 ? thing : (things ?? `${thing}s`)}`;
}

/**
 * Bytes as they are said: `999 bytes`, `1.5 kB`, `12.3 GB`. A MB is 1,048,576 bytes, as in the settings.
 * @param {number} bytes
 */
export function size(bytes) {
  for (const [unit, name] of SIZES) {
    // What would be rounded up to a thousand of a unit is one of the next.
    if (Math.abs(bytes) >= unit * 0.99995) return `${tenths.format(bytes / unit)} ${name}`;
  }
  return counted(Math.round(bytes), "byte");
}

/**
 * A rate: `12,300/s`, `0.4/s`.
 * @param {number} perSecond
 */
export function rate(perSecond) {
  return `${perSecond >= 10 || perSecond === 0 ? whole.format(perSecond) : tenths.format(perSecond)}/s`;
}

/**
 * A length of time in the unit that matters, and the next where there are few: `5 ms`, `2 hours 5 minutes`.
 * @param {number} milliseconds
 */
export function duration(milliseconds) {
  if (Math.abs(milliseconds) < 1_000) return `${whole.format(milliseconds)} ms`;
  for (const [place, [unit, name]] of TIMES.entries()) {
    if (milliseconds < unit) continue;
    const many = Math.floor(milliseconds / unit);
    const next = TIMES[place + 1];
    const rest = many < 10 && next ? Math.floor((milliseconds % unit) / next[0]) : 0;
    return counted(many, name) + (rest && next ? ` ${counted(rest, next[1])}` : "");
  }
  return `${whole.format(milliseconds)} ms`;
}

/**
 * How long ago, in one unit: `3 minutes`, `2 days`.
 * @param {number} milliseconds
 */
export function roughly(milliseconds) {
  for (const [unit, name] of TIMES) {
    if (milliseconds >= unit) return counted(Math.floor(milliseconds / unit), name);
  }
  return "less than a second";
}

/** @param {number} value */
const two = (value) => String(value).padStart(2, "0");

const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

/** @param {Date} date */
function zoneOf(date) {
  return zone.formatToParts(date).find((part) => part.type === "timeZoneName")?.value ?? "";
}

/** @param {Date} date */
const dayOf = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;

/**
 * A time (ms since 1970) where the reader is, with the zone: `2026-01-02 15:04:05 CET`.
 * @param {number} timeMs
 */
export function moment(timeMs) {
  const date = new Date(timeMs);
  if (Number.isNaN(date.getTime())) return `${whole.format(timeMs)} ms`;
  return `${dayOf(date)} ${clock(timeMs)} ${zoneOf(date)}`;
}

/**
 * The same to the millisecond, for titles.
 * @param {number} timeMs
 */
export function exactly(timeMs) {
  const date = new Date(timeMs);
  if (Number.isNaN(date.getTime())) return `${whole.format(timeMs)} ms`;
  return `${dayOf(date)} ${clock(timeMs)}.${String(date.getMilliseconds()).padStart(3, "0")} ${zoneOf(date)}`;
}

/**
 * The time of day: `15:04:05`.
 * @param {number} timeMs
 */
export function clock(timeMs) {
  const date = new Date(timeMs);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/**
 * As it is said in a sentence: `14 Nov 09:12`, with the year where that is another, and seconds where they are asked for.
 * @param {number} timeMs
 * @param {{seconds?: boolean}} [options]
 */
export function said(timeMs, { seconds = false } = {}) {
  const date = new Date(timeMs);
  if (Number.isNaN(date.getTime())) return `${whole.format(timeMs)} ms`;
  const year = date.getFullYear() === new Date().getFullYear() ? "" : ` ${date.getFullYear()}`;
  const time = seconds ? clock(timeMs) : clock(timeMs).slice(0, 5);
  return `${date.getDate()} ${MONTHS[date.getMonth()]}${year} ${time}`;
}

/**
 * A time and how far away that is: `… (3 minutes ago)`, `… (in 2 days)`.
 * @param {number} timeMs
 * @param {number} nowMs
 */
export function momentAndAge(timeMs, nowMs) {
  const away = nowMs - timeMs;
  if (Math.abs(away) < 1_000) return `${moment(timeMs)} (now)`;
  return `${moment(timeMs)} (${away > 0 ? `${duration(away)} ago` : `in ${duration(-away)}`})`;
}

/** @type {Record<string, string>} */
const ESCAPES = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/**
 * The text with what no eye sees escaped: names come from anybody.
 * @param {string} text
 */
export function oneLine(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, (letter) => {
    const code = letter.codePointAt(0) ?? 0;
    if (ESCAPES[letter]) return ESCAPES[letter];
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

/**
 * What a date input shows of a time: local, to the second.
 * @param {number} timeMs
 */
export function dateInput(timeMs) {
  return `${dayOf(new Date(timeMs))}T${clock(timeMs)}`;
}

/**
 * The replay start that is a time.
 * @param {number} timeMs
 */
export function dateStart(timeMs) {
  return new Date(timeMs).toISOString();
}
