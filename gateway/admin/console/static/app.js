import { html, render } from "./vendor/htm-preact.js";

/** The whole console. */
function App() {
  return html`<main><h1>Rewind</h1></main>`;
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
