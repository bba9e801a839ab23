// A list in pages, and which columns it has.
import { make } from "/static/dom.js";

// turn(page): another page is wanted. show({page, pages, total, size}) tells where we are.
export function pager(what, turn) {
  let now = { page: 1, pages: 1, total: 0, size: 1 };
  // A button that cannot be used keeps the focus: the keyboard stays where it is.
  const button = (label, page) => make("button", {
    type: "button", "aria-label": `${label} of ${what}`,
    onclick: () => page() !== now.page && turn(page()),
  }, label);
  const place = make("p", { role: "status" });
  const buttons = [
    button("First page", () => 1),
    button("Previous page", () => Math.max(1, now.page - 1)),
    button("Next page", () => Math.min(now.pages, now.page + 1)),
    button("Last page", () => now.pages),
  ];
  const element = make("nav", { class: "pager", "aria-label": `Pages of ${what}` },
    buttons[0], buttons[1], place, buttons[2], buttons[3]);

  function show(about) {
    now = about;
    const first = (now.page - 1) * now.size + 1, last = Math.min(now.total, first + now.size - 1);
    place.textContent = now.pages > 1
      ? `${first} to ${last} of ${now.total} ${what}, page ${now.page} of ${now.pages}` : `${now.total} ${now.total === 1 ? what.replace(/s$/, "") : what}`;
    buttons.forEach((each, i) => {
      each.hidden = now.pages === 1;
      each.setAttribute("aria-disabled", String(now.page === (i < 2 ? 1 : now.pages)));
    });
  }
  return { element, show };
}

// choose(names): these columns are wanted; none: those that tell runs apart.
export function columnChooser(choose) {
  const boxes = make("fieldset", { class: "columns" });
  const usual = make("button", { type: "button", class: "quiet", onclick: () => choose([]) }, "Those that differ");
  const element = make("details", {}, make("summary", {}, "Columns"), boxes, usual);
  let shown = "";

  function show(fields, columns) {
    const text = JSON.stringify([fields, columns]);
    if (text === shown) return;
    shown = text;
    const focused = boxes.contains(document.activeElement) ? document.activeElement.value : null;
    const inputs = fields.map((name) => make("input", {
      type: "checkbox", value: name, checked: columns.includes(name),
      onchange: () => choose(inputs.filter((each) => each.checked).map((each) => each.value)),
    }));
    boxes.replaceChildren(make("legend", {}, "Fields of the configs to show"),
      ...inputs.map((input) => make("label", {}, input, ` ${input.value}`)));
    inputs.find((input) => input.value === focused)?.focus();
  }
  return { element, show };
}
