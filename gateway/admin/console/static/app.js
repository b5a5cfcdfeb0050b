// The console: who is signed in, then the page that the address names.

import { ApiError, Unreachable, loadSession, lost } from "./api.js";
import { effect, html, render, useEffect, useState } from "./html.js";
import { PAGES } from "./pages.js";
import { Empty, Loading, Refusal } from "./parts/basics.js";
import { Toasts } from "./parts/toasts.js";
import { Shell } from "./shell.js";
import { SignIn } from "./sign_in.js";
import { connection, href, route, session, vpnName } from "./state.js";

function App() {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  useEffect(() => {
    loadSession().catch((problem) => problem instanceof Unreachable || setError(problem));
  }, []);
  const who = session.value;
  if (error) return html`<main class="sign-in"><${Refusal} error=${error} /></main>`;
  if (!who) {
    return html`<main class="sign-in"><${Loading} label=${connection.value.isUp ? "Loading" : "The gateway does not answer; trying again"} /></main>`;
  }
  if (who.isSignInNeeded && !who.isSignedIn) return html`<${SignIn} />`;
  return html`<${Shell}><${Content} /><//><${Toasts} />`;
}

function Content() {
  const { page: name } = route.value;
  const page = PAGES.find((one) => one.name === name) ?? PAGES.find((one) => one.isSeen());
  const [shown, setShown] = useState(/** @type {{name: string, component: any, error: Error | null}} */ ({ name: "", component: null, error: null }));
  useEffect(() => {
    if (!page) return;
    let isWanted = true;
    page.load().then(
      (module) => isWanted && setShown({ name: page.name, component: module.default, error: null }),
      () => isWanted && setShown({ name: page.name, component: null, error: new Unreachable("This page could not be loaded.") }),
    );
    return () => void (isWanted = false);
  }, [page?.name]);
  useEffect(() => {
    document.title = `${page?.title ?? "Nothing"} · ${vpnName.value} · Rewind`;
  }, [page?.name, vpnName.value]);

  if (!page) {
    return html`<${Empty} title="You have no access here">
      Your user needs a rule in its <code>administer</code> list: <code>log://></code> for a whole Message VPN.
    <//>`;
  }
  if (!page.isSeen()) {
    return html`<${Empty} title="You may not see this page">
      Your user needs a rule in its <code>administer</code> list, or <code>global_access</code>. <a href=${href("overview")}>To the overview</a>
    <//>`;
  }
  if (shown.name !== page.name) return html`<${Loading} />`;
  if (!shown.component) return html`<${Refusal} error=${shown.error} />`;
  // Another Message VPN is another page: nothing of the one before stays.
  return html`<${shown.component} key=${vpnName.value} />`;
}

effect(() => {
  // An address without a page is that of the first.
  const who = session.value;
  if (who && (!who.isSignInNeeded || who.isSignedIn) && !route.value.page) {
    const first = PAGES.find((page) => page.isSeen());
    if (first) history.replaceState(null, "", href(first.name));
    if (first) window.dispatchEvent(new HashChangeEvent("hashchange"));
  }
});

// A module that a browser could not load is a gateway that is unavailable.
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof ApiError || event.reason instanceof Unreachable) event.preventDefault();
  if (event.reason instanceof TypeError && /fetch|import/i.test(event.reason.message)) lost();
});

const root = document.getElementById("app");
if (root) render(html`<${App} />`, root);
