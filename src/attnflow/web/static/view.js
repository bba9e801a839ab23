// A view: form, pictures, facts. At most one request is under way, always for the newest values.
import { ask, copyButton, format, make } from "/static/dom.js";
import { buildForm } from "/static/form.js";
import { figure, onTheme } from "/static/plot.js";

const SLOW = 400; // milliseconds after which we say that we wait

export function explorerView(root, about, remember) {
  let newest = 0, shown = 0, busy = false, dragging = false, left = false, answer = null;
  let figures = [], strangers = "";
  const stop = new AbortController();
  const form = buildForm(about.fields, moved);
  const status = make("p", { class: "status", role: "status" });
  const plots = make("div", { class: "plots" });
  const facts = make("dl", { class: "facts", "aria-live": "polite" });
  const command = make("code", { id: "command" }), python = make("code", { id: "python" });
  root.replaceChildren(
    make("h1", {}, about.title), make("p", { class: "intro" }, about.intro),
    make("div", { class: "bench" },
      make("div", { class: "side" }, form.element, status),
      make("div", { class: "results" }, plots,
        make("h2", {}, "Numbers"), facts,
        make("h2", {}, "Again, elsewhere"),
        copyButton("Copy as command", () => command.textContent), make("pre", {}, command),
        copyButton("Copy as Python", () => python.textContent), make("pre", {}, python),
        copyButton("Copy link", () => location.href))));
  onTheme(() => !left && draw());

  function moved(ended, field) {
    if (strangers) say(strangers = "");
    remember(form.state(), dragging);
    dragging = !ended;
    if (field && field.kind === "moment") return draw();
    return refresh();
  }

  async function refresh() {
    newest += 1;
    if (busy) return;
    busy = true;
    while (shown < newest && !left) {
      const mine = newest;
      const waiting = setTimeout(() => say("Computing… (compiles when something is new)"), SLOW);
      try {
        const reply = await ask(`/api/view/${about.name}?${query()}`, { signal: stop.signal });
        if (reply.status === 429) await new Promise((done) => setTimeout(done, 300));
        else if (mine > shown) show(reply, mine);
      } catch {
        break; // the view was left
      } finally {
        clearTimeout(waiting);
      }
    }
    busy = false;
  }

  function query() {
    const values = form.state();
    for (const field of about.fields) if (field.kind === "moment") delete values[field.name];
    return new URLSearchParams(values);
  }

  function show(reply, number) {
    shown = number;
    if (reply.error) {
      form.blame(reply.field, reply.error);
      say(reply.field ? "" : reply.error, true);
      plots.classList.add("old");
      return;
    }
    answer = reply;
    form.blame(null);
    say(strangers, Boolean(strangers));
    plots.classList.remove("old");
    facts.replaceChildren(...reply.facts.flatMap((fact) => [
      make("dt", {}, fact.label),
      make("dd", { "data-key": fact.key }, format(fact.value, fact.missing)),
    ]));
    command.textContent = reply.command;
    python.textContent = reply.python;
    draw();
  }

  function draw() {
    if (!answer) return;
    const count = answer.plots.length;
    plots.classList.toggle("pairs", count === 4);
    plots.classList.toggle("triples", count === 9);
    while (figures.length > answer.plots.length) figures.pop().remove();
    while (figures.length < answer.plots.length) {
      figures.push(figure((field, mark) => form.control(field).toggle(mark)));
      plots.append(figures.at(-1).element);
    }
    answer.plots.forEach((plot, i) => {
      let moment;
      for (const field of about.fields)
        if (field.kind === "moment" && plot.moments) {
          moment = Number(form.control(field.name).get());
          form.control(field.name).say(`step ${plot.moments[moment]}`);
        }
      figures[i].draw(plot, moment);
    });
  }

  function say(words, wrong = false) {
    status.textContent = words;
    status.classList.toggle("error", wrong);
  }

  return {
    set: (values) => {
      const known = new Set(about.fields.map((field) => field.name));
      const names = Object.keys(values).filter((name) => !known.has(name));
      strangers = names.length ? `The address names what is not here: ${names.join(", ")}` : "";
      form.set(values);
      return refresh();
    },
    leave: () => {
      left = true;
      stop.abort();
      figures.forEach((each) => each.remove());
    },
  };
}
