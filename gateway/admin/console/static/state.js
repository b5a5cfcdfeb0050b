// What all pages share: where we are, who is signed in, whether the gateway answers, the theme, the time.

import { computed, effect, signal } from "./html.js";

/**
 * @typedef {object} Vpn
 * @property {string} msgVpnName
 * @property {string} state
 * @property {boolean} mayAdministerLog
 *
 * @typedef {object} Session
 * @property {string} userName
 * @property {boolean} isSignedIn
 * @property {boolean} isSignInNeeded
 * @property {string} csrfToken
 * @property {"none" | "read-only" | "read-write"} globalAccess
 * @property {Vpn[]} msgVpns
 * @property {string} version
 * @property {string[]} identityProviders Issuers, where people can sign in.
 *
 * @typedef {object} Route
 * @property {string} vpn
 * @property {string} page
 * @property {string[]} rest What comes after the page: names, decoded.
 * @property {URLSearchParams} query
 */

/** Who is signed in; null until the gateway has said so. @type {{value: Session | null}} */
export const session = signal(/** @type {Session | null} */ (null));

/** Whether the gateway answers; if not, when it is asked again (ms since 1970). */
export const connection = signal({ isUp: true, retryAtMs: 0 });

/** The time, each second. */
export const now = signal(Date.now());
setInterval(() => (now.value = Date.now()), 1_000);

/** Whether anybody looks. */
export const isVisible = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (isVisible.value = !document.hidden));

/** Whether the page is as narrow as a telephone. */
const narrow = window.matchMedia("(max-width: 760px)");
export const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => (isNarrow.value = narrow.matches));

/** @param {string} hash @returns {Route} */
function routeOf(hash) {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [vpn = "", page = "", ...rest] = path.split("/").map(decoded);
  return { vpn, page, rest, query: new URLSearchParams(query) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Where we are, from the address: `#/VPN/PAGE/NAME?query`. */
export const route = signal(routeOf(location.hash));
window.addEventListener("hashchange", () => (route.value = routeOf(location.hash)));

/** The Message VPN that is looked at. */
export const vpnName = computed(() => route.value.vpn || session.value?.msgVpns[0]?.msgVpnName || "default");

/** What is known of it, and may be done there. */
export const vpn = computed(() => session.value?.msgVpns.find((one) => one.msgVpnName === vpnName.value) ?? null);

/** Whether the log, points, lists and clients of this Message VPN are the user's to administer. */
export const mayAdministerLog = computed(() => vpn.value?.mayAdministerLog ?? false);

/** Whether what is of the gateway as a whole may be seen, and changed. */
export const maySeeGateway = computed(() => (session.value?.globalAccess ?? "none") !== "none");
export const mayChangeGateway = computed(() => session.value?.globalAccess === "read-write");

/**
 * The address of a page of this Message VPN.
 * @param {string} page
 * @param {string[]} [rest] Names.
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function href(page, rest = [], query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  const path = [vpnName.value, page, ...rest].map(encodeURIComponent).join("/");
  return `#/${path}${text ? `?${text}` : ""}`;
}

/**
 * Go to a page.
 * @param {string} page
 * @param {string[]} [rest]
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function go(page, rest, query) {
  location.hash = href(page, rest, query);
}

/**
 * Change the query of the page we are on, without a step in the history.
 * @param {Record<string, string | number | null | undefined>} changes null takes one away.
 */
export function changeQuery(changes) {
  const { page, rest, query } = route.value;
  const address = href(page, rest, { ...Object.fromEntries(query), ...changes });
  history.replaceState(null, "", address);
  route.value = routeOf(address);
}

/** @typedef {"auto" | "light" | "dark"} Theme */

/** @returns {Theme} */
function storedTheme() {
  try {
    const found = localStorage.getItem("rewind-theme");
    return found === "light" || found === "dark" ? found : "auto";
  } catch {
    return "auto";
  }
}

/** What the user chose; `auto` is what the system says. */
export const theme = signal(storedTheme());

const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
const system = signal(systemIsDark.matches);
systemIsDark.addEventListener("change", () => (system.value = systemIsDark.matches));

/** Which colours are shown. */
export const isDark = computed(() => (theme.value === "auto" ? system.value : theme.value === "dark"));

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("rewind-theme", theme.value);
  } catch {
    // A browser that keeps nothing: the choice holds until the page is left.
  }
});
