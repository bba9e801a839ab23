// The store: runs by filter, their curves over each other, and sweeps as they go on.
import { ask, format, make } from "/static/dom.js";
import { figure, onTheme } from "/static/plot.js";

const MOST = 8; // curves in one picture, as many as there are colours

export function runsView(root, remember) {
  let chosen = [], left = false, counts = null, wanted = 0;
  const known = new Map();
  const filter = make("input", { id: "filter", type: "search", autocomplete: "off", "aria-describedby": "help-filter error-filter" });
  const error = make("p", { class: "error", id: "error-filter", "aria-live": "polite" });
  const live = make("p", { class: "live", role: "status" }, "…");
  const table = make("table"), scalar = make("select", { id: "scalar" });
  const about = make("p", { class: "status" }), picture = figure(() => {});
  const failed = make("div"), reports = make("div");
  root.replaceChildren(
    make("h1", {}, "Runs"),
    make("p", { class: "intro" }, "The run store. Tick runs to lay their curves over each other."),
    live,
    make("form", { class: "filters", "aria-label": "Which runs", onsubmit: (event) => event.preventDefault() },
      make("div", { class: "field" }, make("label", { for: "filter" }, "Filter"), filter,
        make("p", { class: "help", id: "help-filter" }, "such as seed<8 how=fast experiment=walk"), error),
      make("div", { class: "field" }, make("label", { for: "scalar" }, "Curve"), scalar)),
    picture.element, about, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, table), failed, reports);
  filter.addEventListener("input", () => (remember(state(), true), list()));
  scalar.addEventListener("change", () => (remember(state(), false), draw()));
  onTheme(() => !left && draw());

  const stream = new EventSource("/api/progress");
  let began = null;
  stream.onmessage = (event) => {
    const now = JSON.parse(event.data);
    began ??= { done: now.done, at: Date.now() };
    const fresh = now.done - began.done, seconds = (Date.now() - began.at) / 1000;
    const rate = fresh > 0 ? ` · ${fresh} more since you look, ${format(fresh / seconds)} a second` : "";
    live.textContent = `${now.done} runs done, ${now.failed} failed, `
      + `${now.running + now.writing} under way${rate}`;
    if (counts && (now.done !== counts.done || now.failed !== counts.failed)) list();
    counts = now;
  };
  stream.onerror = () => (live.textContent = "no news from the server");

  function state() {
    const values = { filter: filter.value, runs: chosen.join(","), scalar: scalar.value };
    if (values.scalar === "loss") delete values.scalar;
    return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
  }

  async function list() {
    const mine = ++wanted;
    const parts = filter.value.split(/\s+/).filter(Boolean).map((text) => ["filter", text]);
    const reply = await ask(`/api/runs?${new URLSearchParams(parts)}`);
    if (left || mine < wanted) return;
    error.textContent = reply.error ?? "";
    if (reply.error) return;
    about.textContent = reply.total > reply.runs.length
      ? `the newest ${reply.runs.length} of ${reply.total} runs` : `${reply.total} runs`;
    const head = ["", "run", "experiment", ...reply.columns, "finished"];
    table.replaceChildren(
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...reply.runs.map((run) => row(run, reply.columns))));
    failed.replaceChildren(...(reply.failed.length ? [make("h2", {}, "Failed"),
      make("ul", {}, ...reply.failed.map((run) => make("li", {}, make("code", {}, run.name), ` ${run.why}`)))] : []));
    reports.replaceChildren(...(reply.reports.length ? [make("h2", {}, "Reports of diagnose"),
      make("ul", {}, ...reply.reports.map((name) => make("li", {},
        make("a", { href: `/report/${encodeURIComponent(name)}`, target: "_blank", rel: "noopener" }, name))))] : []));
  }

  function row(run, columns) {
    const box = make("input", {
      type: "checkbox", checked: chosen.includes(run.name), "aria-label": `show run ${run.name}`,
      onchange: () => pick(run.name, box),
    });
    const when = new Date(1000 * run.when).toISOString().slice(0, 19).replace("T", " ");
    const cells = [make("code", {}, run.name.slice(0, 8)), run.experiment,
      ...columns.map((name) => format(run.config[name], "")), when];
    return make("tr", {}, make("td", {}, box), ...cells.map((cell) => make("td", {}, cell)));
  }

  function pick(name, box) {
    chosen = chosen.filter((each) => each !== name);
    if (box.checked) chosen = [...chosen, name].slice(-MOST);
    for (const each of table.querySelectorAll("input"))
      each.checked = chosen.some((x) => each.getAttribute("aria-label") === `show run ${x}`);
    remember(state(), false);
    draw();
  }

  async function draw() {
    const replies = await Promise.all(chosen.map(async (name) => {
      if (!known.has(name)) known.set(name, await ask(`/api/runs/${encodeURIComponent(name)}`));
      return known.get(name);
    }));
    if (left) return;
    const runs = replies.filter((run) => !run.error && run.clock);
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.scalars)))].filter((x) => x !== "step" && x !== "time");
    const wish = scalar.value || wished || "loss";
    scalar.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    scalar.value = names.includes(wish) ? wish : names[0] ?? "";
    const key = scalar.value, shown = runs.filter((run) => key in run.scalars);
    const clock = { title: shown[0]?.clock ?? "step", log: false, low: null, high: null };
    await picture.draw({
      title: shown.length ? `${key} of ${shown.length} runs` : "Tick runs below to see their curves",
      x: clock, y: { title: key, log: false, low: null, high: null }, wide: true,
      traces: shown.map((run, i) => ({
        kind: "line", x: run.scalars[run.clock], y: run.scalars[key], color: i,
        name: `${run.experiment} ${run.name.slice(0, 8)}`,
      })),
    });
  }

  let wished = "";
  return {
    set: (values) => {
      filter.value = values.filter ?? "";
      chosen = (values.runs ?? "").split(",").filter(Boolean).slice(-MOST);
      wished = values.scalar ?? "";
      scalar.replaceChildren();
      return Promise.all([list(), draw()]);
    },
    leave: () => {
      left = true;
      stream.close();
      picture.remove();
    },
  };
}
