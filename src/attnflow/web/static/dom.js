// Elements from names, attributes and texts. Nothing here, or anywhere, parses text as HTML.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// missing: the word for what is not there, or not finite.
export function format(value, missing = "—") {
  if (value === null || value === undefined) return missing;
  if (Array.isArray(value))
    return value.length ? `[${value.map((each) => format(each, missing)).join(", ")}]` : "none";
  if (typeof value === "object")
    return Object.entries(value).map(([key, item]) => `${key} = ${format(item)}`).join(", ");
  return typeof value === "number" ? numeral(Number(value.toPrecision(6))) : String(value);
}

// A number as text: with a power of ten where it is very large or very small.
export function numeral(value) {
  const size = Math.abs(value);
  const far = size >= 1e6 || (size > 0 && size < 1e-3);
  return far ? value.toExponential().replace("+", "") : String(value);
}

// The server computes for every page in turn: this is who we are.
const NAME = [...crypto.getRandomValues(new Uint32Array(4))].map((x) => x.toString(36)).join("-");

export async function ask(address, options = {}) {
  // The reply as an object; an error has `error`, and `status` beside it.
  try {
    const headers = { ...options.headers, "X-Attnflow-Page": NAME };
    const reply = await fetch(address, { ...options, headers });
    const content = await reply.json();
    return reply.ok ? content : { error: reply.statusText, ...content, status: reply.status };
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    return { error: "the server does not answer: is it still running?", status: 0 };
  }
}

export function copyButton(label, text) {
  const button = make("button", { type: "button", onclick: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it below";
    }
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}
