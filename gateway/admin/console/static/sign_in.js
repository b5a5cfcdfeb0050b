// Signing in, with a name and a password, with a token, or at an identity provider.

import { address, signIn } from "./api.js";
import { html, useState } from "./html.js";
import { Button, Refusal } from "./parts/basics.js";
import { Field, Segments } from "./parts/fields.js";
import { Logo } from "./shell.js";
import { session } from "./state.js";

export function SignIn() {
  const [by, setBy] = useState("password");
  const [userName, setUserName] = useState("");
  const [password, setPassword] = useState("");
  const [token, setToken] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setBusy] = useState(false);

  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await signIn(by === "token" ? { token: token.trim() } : { userName, password });
    } catch (problem) {
      setError(/** @type {Error} */ (problem));
      setPassword("");
    } finally {
      setBusy(false);
    }
  };

  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <${Logo} />
      <h1>Sign in</h1>
      <${Segments}
        label="How you sign in"
        value=${by}
        options=${[
          ["password", "Name and password"],
          ["token", "Token"],
        ]}
        onInput=${setBy}
      />
      ${by === "password"
        ? html`<${Field} label="User name" value=${userName} onInput=${setUserName} autocomplete="username" required=${true} />
            <${Field} label="Password" type="password" value=${password} onInput=${setPassword} autocomplete="current-password" required=${true} />`
        : html`<${Field} label="Token" type="password" value=${token} onInput=${setToken} required=${true} hint="What rewind new-token wrote to its file." />`}
      <${Refusal} error=${error} />
      <${Button} kind="main" type="submit" disabled=${isBusy}>${isBusy ? "One moment…" : "Sign in"}<//>
      ${session.value?.identityProviders.map(
        (issuer) => html`<a class="button" href=${address("/session/begin", { issuer })}>
          Sign in at ${issuer.replace(/^https?:\/\//, "")}
        </a>`,
      )}
    </form>
  </main>`;
}
