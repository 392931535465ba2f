// What the theme leaves out for those who use no mouse, or no screen.
function reachable() {
  // What scrolls can be scrolled with keys.
  for (const part of document.querySelectorAll(
    "pre, .table-wrapper, .cell_output .text_html"
  )) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

function labeled() {
  for (const part of document.querySelectorAll("[role=heading]"))
    part.setAttribute("aria-level", "2");
  const asides = { ".sidebar-drawer": "Site", ".toc-drawer": "This page" };
  for (const [name, label] of Object.entries(asides))
    document.querySelector(name)?.setAttribute("aria-label", label);
}

addEventListener("DOMContentLoaded", labeled);
addEventListener("load", reachable);
addEventListener("resize", reachable);
