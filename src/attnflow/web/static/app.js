// Which view, in which state: the address says so, and only the address.
import { ask, make } from "/static/dom.js";
import { ledgerView } from "/static/ledger.js";
import { runsView } from "/static/runs.js";
import { explorerView } from "/static/view.js";

const root = document.querySelector("main");
let views = new Map(), current = null, name = null;

function state() {
  const values = Object.fromEntries(new URLSearchParams(location.search));
  const view = values.view ?? "two_tokens";
  delete values.view;
  return { view, values };
}

// `again`: in place of the last entry of the history, while something is being dragged.
function remember(values, again) {
  const address = `?${new URLSearchParams({ view: name, ...values })}`;
  if (address === location.search) return;
  if (again) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
}

function fail(title, why) {
  root.replaceChildren(make("h1", {}, title), make("p", { class: "error" }, why));
}

// Not scrollIntoView: it moves the place from which the keyboard starts.
function reveal(link) {
  const nav = link.parentElement, left = link.offsetLeft - nav.offsetLeft;
  const right = left + link.offsetWidth - nav.clientWidth;
  nav.scrollLeft = Math.min(left, Math.max(right, nav.scrollLeft));
}

function show() {
  const { view, values } = state();
  if (view !== name) {
    current?.leave();
    name = view;
    const link = document.querySelector(`nav a[href="?view=${CSS.escape(view)}"]`);
    for (const each of document.querySelectorAll("nav a")) each.removeAttribute("aria-current");
    link?.setAttribute("aria-current", "page");
    if (link) reveal(link);
    document.title = `${link?.textContent ?? "Unknown view"} · attnflow`;
    if (view === "ledger") current = ledgerView(root, remember);
    else if (view === "runs") current = runsView(root, remember);
    else if (views.has(view)) current = explorerView(root, views.get(view), remember);
    else {
      fail("Unknown view", "There is no such view.");
      current = null;
    }
  }
  current?.set(values);
}

document.querySelector("nav").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  show();
});
window.addEventListener("popstate", show);

const about = await ask("/api/views");
if (about.error) fail("No views", about.error);
else {
  views = new Map(about.views.map((view) => [view.name, view]));
  show();
}
