// A form of native controls for the fields of a view.
import { make, numeral } from "/static/dom.js";

// fields: descriptions by the server; changed(ended): a value has moved, `ended`: for now.
export function buildForm(fields, changed) {
  const controls = new Map(fields.map((field) => [field.name, build(field)]));
  const element = make("form", { "aria-label": "Settings" });
  element.addEventListener("submit", (event) => event.preventDefault());
  for (const field of fields) element.append(controls.get(field.name).element);
  element.append(make("button", { type: "button", class: "quiet", onclick: reset }, "Defaults"));

  function build(field) {
    const tell = (ended) => {
      limitMarks();
      changed(ended, field);
    };
    return { slider, choice, bars, marks, moment }[field.kind](field, tell);
  }

  function limitMarks() {
    for (const field of fields)
      if (field.kind === "marks" && field.of)
        controls.get(field.name).limit(controls.get(field.of).get());
  }

  function reset() {
    set({});
    changed(true, null);
  }

  function set(query) {
    for (const field of fields) {
      const text = query[field.name];
      controls.get(field.name).set(text === undefined ? usual(field) : text);
    }
    limitMarks();
    blame(null);
  }

  // The address: only what is not the default.
  function state() {
    const values = {};
    for (const field of fields) {
      const text = controls.get(field.name).get();
      if (text !== usual(field)) values[field.name] = text;
    }
    return values;
  }

  function blame(name, text = "") {
    for (const [each, control] of controls) control.fail(each === name ? text : "");
  }

  set({});
  return { element, set, state, blame, control: (name) => controls.get(name) };
}

// The default as text.
function usual(field) {
  return [field.default].flat().map((x) => (typeof x === "number" ? numeral(x) : x)).join(",");
}

function frame(field, ...inputs) {
  const help = make("p", { class: "help", id: `help-${field.name}` }, field.help);
  const error = make("p", { class: "error", id: `error-${field.name}`, "aria-live": "polite" });
  const element = make("div", { class: `field ${field.kind}` }, ...inputs, help, error);
  const fail = (text) => {
    error.textContent = text;
    for (const input of element.querySelectorAll("input, select"))
      input.setAttribute("aria-invalid", text ? "true" : "false");
  };
  return { element, fail };
}

const described = (field) => ({ "aria-describedby": `help-${field.name} error-${field.name}` });

function title(field) {
  return field.label + (field.unit ? ` (${field.unit})` : "");
}

function scale(field) {
  // Between a value and the place of a range input.
  const place = (value) => (field.log ? Math.log10(value) : value);
  const short = (value) => (field.log ? Number(value.toPrecision(3)) : Number(value.toFixed(6)));
  const clamp = (value) => Math.min(field.high, Math.max(field.low, value));
  const value = (x) => {
    const plain = field.log ? 10 ** x : x;
    return clamp(field.whole ? Math.round(plain) : short(plain));
  };
  const step = field.log ? 0.01 : field.whole ? 1 : field.step || (field.high - field.low) / 200;
  return { place, value, step, low: place(field.low), high: place(field.high) };
}

function slider(field, tell) {
  const { place, value, step, low, high } = scale(field);
  const id = `field-${field.name}`;
  const range = make("input", { type: "range", id, min: low, max: high, step, ...described(field) });
  const number = make("input", {
    type: "number", min: field.low, max: field.high, step: field.whole ? "1" : "any",
    "aria-label": `${field.label}, as a number`, ...described(field),
  });
  let text = "";
  const speak = () => range.setAttribute("aria-valuetext", text);
  const moved = (ended) => {
    text = numeral(value(Number(range.value)));
    number.value = text;
    speak();
    tell(ended);
  };
  range.addEventListener("input", () => moved(false));
  range.addEventListener("change", () => tell(true));
  number.addEventListener("change", () => {
    text = number.value;
    range.value = place(Number(text));
    speak();
    tell(true);
  });
  const set = (given) => {
    text = String(given);
    number.value = text;
    range.value = place(Number(text));
    speak();
  };
  const label = make("label", { for: id }, title(field));
  return { ...frame(field, label, number, range), set, get: () => text };
}

function choice(field, tell) {
  const id = `field-${field.name}`;
  const options = field.options.map((name) => make("option", { value: name }, name));
  const select = make("select", { id, ...described(field) }, ...options);
  select.addEventListener("change", () => tell(true));
  const set = (text) => (select.value = text);
  return { ...frame(field, make("label", { for: id }, title(field)), select), set, get: () => select.value };
}

function bars(field, tell) {
  const { place, value, step, low, high } = scale(field);
  const inputs = field.default.map((_, i) =>
    make("input", {
      type: "range", min: low, max: high, step,
      "aria-label": `${field.label}, ${i}`, ...described(field),
    }));
  let values = [];
  inputs.forEach((input, i) => {
    input.addEventListener("input", () => {
      values[i] = numeral(value(Number(input.value)));
      input.setAttribute("aria-valuetext", values[i]);
      tell(false);
    });
    input.addEventListener("change", () => tell(true));
  });
  const set = (text) => {
    values = text.split(",");
    inputs.forEach((input, i) => {
      input.value = place(Number(values[i] ?? field.low));
      input.setAttribute("aria-valuetext", values[i] ?? "");
    });
  };
  const legend = make("legend", {}, title(field));
  const group = make("fieldset", {}, legend, make("div", { class: "upright" }, ...inputs));
  return { ...frame(field, group), set, get: () => values.join(",") };
}

function marks(field, tell) {
  const boxes = [...Array(field.count).keys()].map((i) =>
    make("input", { type: "checkbox", value: String(i), onchange: () => tell(true) }));
  const labels = boxes.map((box, i) => make("label", {}, box, ` ${i}`));
  const get = () => boxes.filter((box) => box.checked && !box.disabled).map((box) => box.value).join(",");
  const set = (text) => {
    const chosen = new Set(text.split(","));
    for (const box of boxes) box.checked = chosen.has(box.value);
  };
  const limit = (count) => boxes.forEach((box, i) => {
    box.disabled = i >= Number(count);
    labels[i].hidden = box.disabled;
  });
  const toggle = (i) => {
    boxes[i].checked = !boxes[i].checked;
    tell(true);
  };
  const group = make("fieldset", {}, make("legend", {}, title(field)), ...labels);
  return { ...frame(field, group), set, get, limit, toggle };
}

function moment(field, tell) {
  const id = `field-${field.name}`;
  const range = make("input", { type: "range", id, min: 0, max: field.count - 1, step: 1, ...described(field) });
  const shown = make("output", { for: id });
  range.addEventListener("input", () => tell(false));
  range.addEventListener("change", () => tell(true));
  const say = (words) => {
    shown.textContent = words;
    range.setAttribute("aria-valuetext", words);
  };
  const label = make("label", { for: id }, title(field));
  return {
    ...frame(field, label, shown, range), say,
    set: (text) => (range.value = text), get: () => range.value,
  };
}
