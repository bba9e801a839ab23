// A view: form, pictures, facts. While replies come soon, at most one request is under way; where
// one is slow, a newer one takes its place at the server.
import { ask, copyButton, format, make } from "/static/dom.js";
import { buildForm } from "/static/form.js";
import { figure, onTheme } from "/static/plot.js";

const SLOW = 400; // milliseconds after which we say that we wait

export function explorerView(root, about, remember) {
  let newest = 0, asked = 0, shown = 0, dragging = false, left = false, answer = null;
  let quick = 0; // requests under way of which we do not know yet that they are slow
  let figures = [], strangers = "";
  const stop = new AbortController();
  const form = buildForm(about.fields, moved);
  const status = make("p", { class: "status", role: "status" });
  const plots = make("div", { class: "plots" });
  const facts = make("dl", { class: "facts", "aria-live": "polite" });
  const results = make("div", { class: "results" });
  const command = make("code", { id: "command" }), python = make("code", { id: "python" });
  const copies = [copyButton("Copy as command", () => command.textContent),
    copyButton("Copy as Python", () => python.textContent)];
  const stale = make("p", { class: "stale", hidden: true }, "These are the results of earlier values.");
  results.append(stale,
    make("h2", {}, "Pictures"), plots, make("h2", {}, "Numbers"), facts,
    make("h2", {}, "Again, elsewhere"),
    copies[0], make("pre", {}, command), copies[1], make("pre", {}, python));
  root.replaceChildren(
    make("h1", {}, about.title), make("p", { class: "intro" }, about.intro),
    make("div", { class: "bench" }, make("div", { class: "side" }, form.element, status),
      make("div", {}, results, copyButton("Copy link", () => location.href))));
  onTheme(() => !left && draw());

  function moved(ended, field) {
    if (strangers) say(strangers = "");
    remember(form.state(), dragging);
    dragging = !ended;
    if (field && field.kind === "moment") return draw();
    return refresh();
  }

  function refresh() {
    newest += 1;
    pump();
  }

  async function pump() {
    if (quick || asked === newest || left) return;
    const mine = asked = newest;
    let slow = false;
    quick += 1;
    const waiting = setTimeout(() => {
      slow = true;
      quick -= 1;
      say("Computing… (compiles when something is new)");
      pump();
    }, SLOW);
    try {
      const reply = await ask(`/api/view/${about.name}?${query()}`, { signal: stop.signal });
      if (reply.status === 429) await new Promise((done) => setTimeout(done, 300));
      if (reply.status === 429 && mine === newest) asked -= 1; // again
      else if (![409, 429].includes(reply.status) && mine > shown) show(reply, mine);
    } catch {
      return; // the view was left
    } finally {
      clearTimeout(waiting);
      if (!slow) quick -= 1;
    }
    pump();
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
      age(true);
      return;
    }
    answer = reply;
    form.blame(null);
    if (number === newest) say(strangers, Boolean(strangers));
    age(false);
    facts.replaceChildren(...reply.facts.flatMap((fact) => [
      make("dt", {}, fact.label),
      make("dd", { "data-key": fact.key }, format(fact.value, fact.missing)),
    ]));
    command.textContent = reply.command;
    python.textContent = reply.python;
    draw();
  }

  // What is shown is not what was asked for: it is dimmed, and not to be copied.
  function age(old) {
    results.classList.toggle("old", old);
    stale.hidden = !(old && answer);
    for (const button of copies) button.disabled = old;
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
