// The store: runs by filter and page, their curves over each other, and sweeps as they go on.
import { ask, format, make } from "/static/dom.js";
import { columnChooser, pager } from "/static/pager.js";
import { figure, onTheme } from "/static/plot.js";
import { progress } from "/static/progress.js";

const MOST = 8; // curves in one picture, as many as there are colours
const SIZES = ["25", "50", "100", "200"], SIZE = "50"; // runs of a page

export function runsView(root, remember) {
  let chosen = [], left = false, wanted = 0, page = 1, failedPage = 1, columns = [];
  const known = new Map();
  const filter = make("input", { id: "filter", type: "search", autocomplete: "off", "aria-describedby": "help-filter error-filter" });
  const error = make("p", { class: "error", id: "error-filter", "aria-live": "polite" });
  const live = progress(() => list());
  const table = make("table"), scalar = make("select", { id: "scalar" });
  const size = make("select", { id: "size" }, ...SIZES.map((each) => make("option", { value: each }, each)));
  const pages = pager("runs", (number) => turn(() => (page = number)));
  const failedPages = pager("failed runs", (number) => turn(() => (failedPage = number)));
  const fields = columnChooser((names) => turn(() => (columns = names)));
  const picture = figure(() => {}), others = make("div");
  const troubles = make("ul", { class: "texts", "aria-live": "polite" });
  const labelled = (text, input) => make("div", { class: "field" }, make("label", { for: input.id }, text), input);
  root.replaceChildren(
    make("h1", {}, "Runs"),
    make("p", { class: "intro" }, "The run store. Tick runs to lay their curves over each other."),
    live.element,
    make("form", { class: "filters", "aria-label": "Which runs", onsubmit: (event) => event.preventDefault() },
      make("div", { class: "field" }, make("label", { for: "filter" }, "Filter"), filter,
        make("p", { class: "help", id: "help-filter" }, "such as seed<8 how=fast experiment=walk"), error),
      labelled("Curve", scalar), labelled("Runs a page", size)),
    make("h2", {}, "Curves"), troubles, picture.element,
    make("h2", {}, "Table"), fields.element, pages.element,
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of runs" }, table), others);
  filter.addEventListener("input", () => (page = 1, remember(state(), true), list()));
  scalar.addEventListener("change", () => (remember(state(), false), draw()));
  size.addEventListener("change", () => turn(() => (page = 1)));
  onTheme(() => !left && draw());

  function turn(change) {
    change();
    remember(state(), false);
    list();
  }

  // The address: only what is not the default.
  function state() {
    const values = {
      filter: filter.value, runs: chosen.join(","), scalar: scalar.value === "loss" ? "" : scalar.value,
      page: page > 1 ? page : "", failed: failedPage > 1 ? failedPage : "",
      size: size.value === SIZE ? "" : size.value, columns: columns.join(","),
    };
    return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
  }

  async function list() {
    const mine = ++wanted;
    const parts = [...filter.value.split(/\s+/).filter(Boolean).map((text) => ["filter", text]),
      ...columns.map((name) => ["column", name]), ["page", page], ["failed", failedPage], ["size", size.value]];
    const reply = await ask(`/api/runs?${new URLSearchParams(parts)}`);
    if (left || mine < wanted || reply.status === 409) return;
    error.textContent = reply.error ?? "";
    filter.setAttribute("aria-invalid", String(reply.field === "filter"));
    if (reply.error) return;
    [page, failedPage] = [reply.page, reply.failed.page];
    pages.show(reply);
    fields.show(reply.fields, reply.columns);
    const head = ["show", "run", "experiment", ...reply.columns, "finished (UTC)"];
    table.replaceChildren(
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...reply.runs.map((run) => row(run, reply.columns))));
    failedPages.show(reply.failed);
    const more = reply.more_notes ? [`and ${reply.more_notes} more`] : [];
    others.replaceChildren(
      ...section("Left out", [...reply.notes, ...more].map((note) => [note])),
      ...section("Failed", reply.failed.runs.map((run) => [make("code", {}, run.name), ` ${run.why}`]), failedPages.element),
      ...section("Reports of diagnose", reply.reports.map((name) => [
        make("a", { href: `/report/${encodeURIComponent(name)}`, target: "_blank", rel: "noopener" }, name)])));
  }

  function section(title, items, ...more) {
    return items.length ? [make("h2", {}, title), ...more,
      make("ul", { class: "texts", "aria-label": title }, ...items.map((parts) => make("li", {}, ...parts)))] : [];
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
      const reply = known.get(name) ?? await ask(`/api/runs/${encodeURIComponent(name)}`);
      if (!reply.error) known.set(name, reply);
      return reply;
    }));
    if (left) return;
    troubles.replaceChildren(...replies.flatMap((reply, i) =>
      reply.error ? [make("li", { class: "error" }, `run ${chosen[i]}: ${reply.error}`)] : []));
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
      page = whole(values.page);
      failedPage = whole(values.failed);
      size.value = SIZES.includes(values.size) ? values.size : SIZE;
      columns = (values.columns ?? "").split(",").filter(Boolean);
      chosen = (values.runs ?? "").split(",").filter(Boolean).slice(-MOST);
      wished = values.scalar ?? "";
      scalar.replaceChildren();
      return Promise.all([list(), draw()]);
    },
    leave: () => {
      left = true;
      live.close();
      picture.remove();
    },
  };
}

const whole = (text) => Math.min(1e9, Math.max(1, Math.floor(Number(text)) || 1));
