// The pages: their names in the address, in the navigation, who sees them, and where they are.

import { mayAdministerLog, maySeeGateway } from "./state.js";

/**
 * @typedef {object} Page
 * @property {string} name In the address.
 * @property {string} title
 * @property {string} icon
 * @property {() => boolean} isSeen By the user that is signed in.
 * @property {() => Promise<{default: any}>} load Its component.
 */

/** What is of a Message VPN as a whole. */
const inVpn = () => mayAdministerLog.value;

/** In the order of the navigation. @type {Page[]} */
export const PAGES = [
  { name: "overview", title: "Overview", icon: "overview", isSeen: inVpn, load: () => import("./pages/overview.js") },
  { name: "log", title: "Log", icon: "log", isSeen: inVpn, load: () => import("./pages/log.js") },
  { name: "rewind", title: "Rewind", icon: "rewind", isSeen: inVpn, load: () => import("./pages/rewind.js") },
  { name: "replays", title: "Replays", icon: "replays", isSeen: inVpn, load: () => import("./pages/replays.js") },
  { name: "endpoints", title: "Endpoints", icon: "endpoints", isSeen: () => true, load: () => import("./pages/endpoints.js") },
  { name: "dead-letters", title: "Dead letters", icon: "dead", isSeen: inVpn, load: () => import("./pages/dead_letters.js") },
  { name: "clients", title: "Clients", icon: "clients", isSeen: inVpn, load: () => import("./pages/clients.js") },
  { name: "users", title: "Users", icon: "users", isSeen: () => maySeeGateway.value, load: () => import("./pages/users.js") },
  { name: "configuration", title: "Configuration", icon: "configuration", isSeen: () => maySeeGateway.value, load: () => import("./pages/configuration.js") },
];
