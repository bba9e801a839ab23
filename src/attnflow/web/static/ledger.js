// The ledger: claims by paper and verdict, each to be run again.
import { ask, format, make } from "/static/dom.js";

const VERDICTS = ["holds", "holds_corrected", "refuted", "not_checkable"];
const words = (name) => name.replaceAll("_", " ");

// `code`; u_j, x^2, e^{-t}: subscripts of one letter, superscripts; everything else as it stands.
const SCRIPT = String.raw`(\{[^}]*\}|\([^()]*\)|[+−-]?[\p{L}0-9*∞]{1,4}(?![\p{L}0-9_]))`;
const PARTS = new RegExp("`([^`]+)`|(?<=(?<![\\p{L}_])\\p{L}|[∇∂∫‖)\\]])_" + SCRIPT + "|\\^" + SCRIPT, "gu");

export function typeset(statement) {
  const parts = [];
  let end = 0;
  for (const match of statement.matchAll(PARTS)) {
    const [all, code, below, above] = match;
    const inner = code ?? below ?? above;
    parts.push(statement.slice(end, match.index));
    parts.push(make(code ? "code" : below ? "sub" : "sup", {}, inner.startsWith("{") ? inner.slice(1, -1) : inner));
    end = match.index + all.length;
  }
  return [...parts, statement.slice(end)];
}

export function ledgerView(root, remember) {
  let claims = [], left = false;
  const ready = load();
  const paper = make("select", { id: "paper" }), verdict = make("select", { id: "verdict" });
  const search = make("input", { id: "search", type: "search", autocomplete: "off" });
  const count = make("p", { class: "status", role: "status" });
  const list = make("div", { class: "claims" });
  const labelled = (text, input) => make("div", { class: "field" }, make("label", { for: input.id }, text), input);
  root.replaceChildren(
    make("h1", {}, "Ledger"),
    make("p", { class: "intro" },
      "Every statement of the papers as a check with a verdict. Verdicts are the recorded ones; ",
      "run a claim to see what it finds here and now, or its counterexample."),
    make("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
      labelled("Paper", paper), labelled("Verdict", verdict), labelled("Words", search)),
    count, list);
  for (const input of [paper, verdict, search])
    input.addEventListener("input", () => {
      remember(state(), input === search);
      show();
    });

  async function load() {
    const reply = await ask("/api/ledger");
    if (left) return;
    if (reply.error) return void (count.textContent = reply.error);
    claims = reply.claims.map((claim) => ({ ...claim, element: card(claim) }));
    const papers = [...new Set(claims.map((claim) => claim.paper))];
    fill(paper, papers);
    fill(verdict, VERDICTS);
    list.replaceChildren(...claims.map((claim) => claim.element));
  }

  function fill(select, options) {
    select.replaceChildren(make("option", { value: "" }, "all"),
      ...options.map((name) => make("option", { value: name }, words(name))));
  }

  function state() {
    const values = { paper: paper.value, verdict: verdict.value, search: search.value };
    return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
  }

  function show() {
    const wanted = search.value.toLowerCase();
    let seen = 0;
    for (const claim of claims) {
      const text = `${claim.id} ${claim.where} ${claim.statement}`.toLowerCase();
      const hidden = (paper.value && claim.paper !== paper.value)
        || (verdict.value && claim.verdict !== verdict.value) || !text.includes(wanted);
      claim.element.hidden = Boolean(hidden);
      seen += !hidden;
    }
    count.textContent = `${seen} of ${claims.length} claims`;
  }

  function card(claim) {
    const badge = make("span", { class: `verdict ${claim.verdict}` }, words(claim.verdict));
    const found = make("div", { class: "finding", "aria-live": "polite" });
    const button = make("button", { type: "button", onclick: () => run(false) }, "Run it");
    const refute = make("button", { type: "button", onclick: () => run(true) }, "Run its counterexample");
    const buttons = make("p", { class: "buttons" }, button);
    const wrong = ["holds_corrected", "refuted"].includes(claim.verdict);
    if (wrong && (!claim.slow || claim.finding?.counterexample?.run)) buttons.append(refute);
    let row = claim.slow ? claim.finding : null, note = `found on ${claim.date}`;
    if (claim.slow) button.disabled = true;
    if (claim.finding)
      found.append(...finding(claim.finding, `found on ${claim.date}`));
    if (claim.slow)
      found.append(make("p", { class: "soft" }, "Trains networks or reads large models: ",
        make("code", {}, `attnflow verify ${claim.id} --slow`)));

    const post = (path) => ask(`/api/ledger/${claim.id}${path}`,
      { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });

    async function run(refuting) {
      button.disabled = refute.disabled = true;
      found.replaceChildren(make("p", { class: "soft" }, "Running…"));
      const reply = claim.slow ? row : await post("");
      if (!reply.error && !claim.slow) {
        const changed = reply.verdict === reply.recorded ? "" : `, recorded as ${words(reply.recorded)}`;
        note = reply.note || `found now, in ${reply.seconds} s${changed}`;
        row = reply;
      }
      const more = refuting && !reply.error ? await post("/counterexample") : {};
      button.disabled = Boolean(claim.slow);
      refute.disabled = false;
      found.replaceChildren(...(reply.error ? [] : finding({ ...row, printed: more.printed }, note)));
      for (const { error } of [reply, more]) if (error) found.append(make("p", { class: "error" }, error));
    }

    const given = claim.hypotheses
      ? [make("p", { class: "soft" }, "Given: ", ...typeset(claim.hypotheses))] : [];
    return make("article", { class: "claim", "data-id": claim.id },
      make("h2", {}, badge, " ", make("code", {}, claim.id)),
      make("p", { class: "soft" }, `${claim.where} · ${claim.kind}`),
      make("p", { class: "statement" }, ...typeset(claim.statement)), ...given, found, buttons);
  }

  function finding(row, note) {
    const parts = [make("p", {},
      make("span", { class: `verdict ${row.verdict}` }, words(row.verdict)),
      ` · margin ${format(row.margin)} over ${row.cases} cases · ${note}`)];
    if (row.correction) parts.push(make("p", {}, make("b", {}, "True is: "), ...typeset(row.correction)));
    if (row.counterexample) {
      const { run: again, ...facts } = row.counterexample;
      const pairs = Object.entries(facts);
      parts.push(make("p", {}, make("b", {}, "Counterexample: "), ...(pairs.length
        ? typeset(pairs.map(([key, value]) => `${key} = ${format(value)}`).join(", ")) : ["see it:"])));
      if (again) parts.push(make("pre", {}, make("code", {}, again)));
      if (row.printed !== undefined)
        parts.push(make("p", { class: "soft" }, "prints"), make("pre", { class: "printed" }, row.printed));
    }
    return parts;
  }

  return {
    set: async (values) => {
      await ready;
      paper.value = values.paper ?? "";
      verdict.value = values.verdict ?? "";
      search.value = values.search ?? "";
      if (claims.length) show();
    },
    leave: () => (left = true),
  };
}
