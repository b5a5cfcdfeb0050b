// The style sheet's colours for what is drawn on a canvas.

/**
 * What a colour of the style sheet is now, light or dark.
 * @param {string} name Such as `accent`.
 * @returns {string}
 */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
