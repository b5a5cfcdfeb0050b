// What components are written with: htm bound to Preact, hooks and signals. No other module names these libraries.

import htm from "./vendor/htm.js";
import * as hooks from "./vendor/preact-hooks.js";
import * as preact from "./vendor/preact.js";
import * as signals from "./vendor/signals.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(preact.h);

/** @type {(tree: any, parent: Element) => void} */
export const render = preact.render;

/** @type {<T>(initial: T | (() => T)) => [T, (next: T | ((before: T) => T)) => void]} */
export const useState = hooks.useState;

/** @type {<T>(initial: T) => {current: T}} */
export const useRef = hooks.useRef;

/** @type {(run: () => void | (() => void), about?: unknown[]) => void} */
export const useEffect = hooks.useEffect;

/** @type {(run: () => void | (() => void), about?: unknown[]) => void} */
export const useLayoutEffect = hooks.useLayoutEffect;

/** @type {<T>(make: () => T, about: unknown[]) => T} */
export const useMemo = hooks.useMemo;

/** @type {<T extends Function>(run: T, about: unknown[]) => T} */
export const useCallback = hooks.useCallback;

/**
 * A value that components which read it follow.
 * @template T
 * @typedef {object} Signal
 * @property {T} value
 * @property {() => T} peek The value, not followed.
 * @property {(run: (value: T) => void) => () => void} subscribe Runs now, and at each change.
 */

/** @type {<T>(initial: T) => Signal<T>} */
export const signal = signals.signal;

/** @type {<T>(make: () => T) => Signal<T>} */
export const computed = signals.computed;

/** @type {(run: () => void) => () => void} */
export const effect = signals.effect;

/** @type {(run: () => void) => void} */
export const batch = signals.batch;
