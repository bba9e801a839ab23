// Sweeps as they go on: how many runs there are, and what is left to do.
import { format, make } from "/static/dom.js";

// changed(): the store has other runs than before.
export function progress(changed) {
  const counts = make("p", { class: "live", role: "status" }, "…");
  const sweeps = make("ul", { class: "sweeps", "aria-label": "Sweeps under way" });
  const stream = new EventSource("/api/progress");
  let before = null;
  stream.onmessage = (event) => {
    const now = JSON.parse(event.data);
    counts.textContent = `${now.done} runs done, ${now.failed} failed`
      + (now.sweeps.length ? "" : ", no sweep under way");
    sweeps.hidden = !now.sweeps.length;
    sweeps.replaceChildren(...now.sweeps.map((sweep) => make("li", {},
      make("progress", { max: sweep.total, value: sweep.done + sweep.failed, "aria-label": sweep.experiment }),
      told(sweep))));
    if (before && (now.done !== before.done || now.failed !== before.failed)) changed();
    before = now;
  };
  stream.onerror = () => (counts.textContent = "no news from the server");
  return { element: make("div", {}, counts, sweeps), close: () => stream.close() };
}

function told(sweep) {
  const failed = sweep.failed ? `, ${sweep.failed} failed` : "";
  const left = sweep.seconds_left === null ? "" : `, ${duration(sweep.seconds_left)} left`;
  return `${sweep.experiment}: ${sweep.done} of ${sweep.total} done${failed}${left}`;
}

export function duration(seconds) {
  if (seconds < 60) return `about ${seconds} s`;
  if (seconds < 3600) return `about ${Math.round(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `about ${format(Math.round(seconds / 360) / 10)} h` : `about ${Math.round(seconds / 86400)} days`;
}
