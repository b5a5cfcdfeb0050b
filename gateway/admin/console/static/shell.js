// What is around every page: the name, the choice of Message VPN, the navigation, the state of the connection, the theme.

import { signOut, tryNow } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { PAGES } from "./pages.js";
import { Button } from "./parts/basics.js";
import { Icon } from "./parts/icons.js";
import { connection, go, href, now, route, session, theme, vpnName } from "./state.js";

export function Logo() {
  return html`<span class="logo">
    <svg viewBox="0 0 32 32" aria-hidden="true" focusable="false"><path d="M16 7v18L4 16zM29 7v18L17 16z" /></svg>Rewind
  </span>`;
}

/** @param {{children?: any}} props */
export function Shell({ children }) {
  const [isOpen, setOpen] = useState(false);
  const { page } = route.value;
  useEffect(() => setOpen(false), [route.value]);
  return html`<div class="shell">
    <a class="skip" href="#content" onClick=${skip}>To the content</a>
    <header class="top">
      <${Button} kind="quiet" icon="menu" label="Navigation" pressed=${isOpen} onClick=${() => setOpen(!isOpen)} />
      <a class="home" href=${href("overview")}><${Logo} /></a>
      <${VpnChoice} />
      <div class="top-end">
        <${ThemeSwitch} />
        <${User} />
      </div>
    </header>
    <${Connection} />
    <nav class="nav ${isOpen ? "open" : ""}" aria-label="Pages">
      ${PAGES.filter((one) => one.isSeen()).map(
        (one) =>
          html`<a key=${one.name} href=${href(one.name)} aria-current=${one.name === page ? "page" : undefined}>
            <${Icon} name=${one.icon} />${one.title}
          </a>`,
      )}
      <p class="version">Rewind ${session.value?.version}</p>
    </nav>
    <main class="content" id="content" tabindex="-1">${children}</main>
  </div>`;
}

/** The address says which page is shown, so it stays. @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function VpnChoice() {
  const vpns = session.value?.msgVpns ?? [];
  if (vpns.length < 2) return html`<span class="vpn" title="Message VPN">${vpnName.value}</span>`;
  return html`<label class="vpn">
    <span class="unseen">Message VPN</span>
    <select
      value=${vpnName.value}
      onChange=${(/** @type {any} */ event) => (location.hash = `#/${encodeURIComponent(event.target.value)}/${route.value.page}`)}
    >
      ${vpns.map(
        (one) =>
          html`<option key=${one.msgVpnName} value=${one.msgVpnName} selected=${one.msgVpnName === vpnName.value}>
            ${one.msgVpnName}${one.state === "up" ? "" : ` (${one.state})`}
          </option>`,
      )}
    </select>
  </label>`;
}

/** @type {Record<string, import("./state.js").Theme>} */
const NEXT_THEME = { auto: "light", light: "dark", dark: "auto" };
/** @type {Record<string, string>} */
const THEMES = { auto: "as the system", light: "light", dark: "dark" };

function ThemeSwitch() {
  const shown = theme.value;
  return html`<${Button}
    kind="quiet"
    icon=${shown}
    label="Colours: ${THEMES[shown]}"
    title="Colours: ${THEMES[shown]}"
    onClick=${() => (theme.value = NEXT_THEME[shown] ?? "auto")}
  />`;
}

function User() {
  const who = session.value;
  if (!who?.isSignInNeeded) return null;
  return html`<span class="user" title="Signed in as ${who.userName}">${who.userName}</span>
    <${Button} kind="quiet" icon="out" label="Sign out" title="Sign out" onClick=${signOut} />`;
}

function Connection() {
  const { isUp, retryAtMs } = connection.value;
  const [wasDown, setWasDown] = useState(false);
  useEffect(() => {
    if (!isUp) setWasDown(true);
    const timer = isUp && wasDown ? setTimeout(() => setWasDown(false), 4_000) : undefined;
    return () => clearTimeout(timer);
  }, [isUp, wasDown]);
  const seconds = Math.max(0, Math.ceil((retryAtMs - now.value) / 1_000));
  return html`<div class="connection ${isUp ? "up" : "down"}" role="status" aria-live="polite">
    ${!isUp &&
    html`<${Icon} name="warning" /><span>The gateway does not answer; trying again${seconds ? ` in ${seconds} s` : "…"}</span>
      <${Button} kind="quiet" onClick=${tryNow}>Try now<//>`}
    ${isUp && wasDown && html`<${Icon} name="check" /><span>The gateway answers again.</span>`}
  </div>`;
}

/** Where there is nothing that the user may see. */
export function goHome() {
  const first = PAGES.find((page) => page.isSeen());
  if (first) go(first.name);
}
