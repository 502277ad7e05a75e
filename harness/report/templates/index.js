// Shows what has all words of the filter, and ratios to an engine; the address keeps both.
(() => {
  "use strict";
  const field = document.getElementById("filter");
  if (!field) return;
  const found = document.querySelector(".filter output");
  const baseline = document.getElementById("baseline");
  const chips = [...document.querySelectorAll(".filter button")];
  const plain = text => text.toLowerCase().replaceAll("-", ""); // GPT-2 is gpt2
  const text = element => plain(element.dataset.filter);

  function apply() {
    const words = plain(field.value).split(/\s+/).filter(Boolean);
    const matches = text => words.every(word => text.includes(word));
    let loads = 0;
    for (const part of document.querySelectorAll(":is(tbody, details, li)[data-filter]")) {
      const rows = [...part.querySelectorAll("tr[data-filter]")];
      for (const row of rows) row.hidden = !matches(`${text(part)} ${text(row)}`);
      const shown = rows.filter(row => !row.hidden).length;
      part.hidden = rows.length ? !shown : !matches(text(part));
      if (part.matches("tbody")) loads += shown;
    }
    const some = loads ? `${loads} ${loads === 1 ? "load" : "loads"}` : "no load has all these words";
    found.textContent = words.length ? some : "";
    for (const chip of chips) {
      const pressed = plain(chip.textContent).split(" ").every(word => words.includes(word));
      chip.setAttribute("aria-pressed", String(pressed));
    }
    for (const head of document.querySelectorAll(".glance th[data-head]")) {
      const cells = [...document.querySelectorAll(`.glance td[data-head="${CSS.escape(head.dataset.head)}"]`)];
      head.hidden = !cells.some(cell => cell.firstChild && !cell.parentElement.closest("[hidden]"));
      for (const cell of cells) cell.hidden = head.hidden;
    }
    for (const row of document.querySelectorAll(".glance tr[data-filter]")) divide(row);
  }

  // A ratio is coloured by how far it is from 1: blue is better, orange worse.
  function divide(row) {
    const bases = {};
    for (const number of row.querySelectorAll(`td[data-head="${CSS.escape(baseline.value)}"] data`)) {
      if (!number.querySelector("s")) bases[number.dataset.of] ??= Number(number.value);
    }
    for (const number of row.querySelectorAll("data")) {
      const base = bases[number.dataset.of];
      const target = number.querySelector("s") ?? number;
      target.dataset.text ??= target.textContent;
      const ratio = Number(number.value) / base;
      target.textContent = base ? `${ratio.toFixed(ratio < 10 ? 2 : 0)}×` : target.dataset.text;
      const better = Math.log(ratio) * (/^T/.test(number.dataset.of) ? -1 : 1);
      const share = Math.min(60, Math.round(40 * Math.abs(better)));
      const colour = better > 0 ? "#0072b2" : "#e69f00";
      number.style.background = base && share > 1 ? `color-mix(in srgb, ${colour} ${share}%, transparent)` : "";
    }
  }

  function recall() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("filter") && !asked.has("to") && location.hash) return; // a place in the page
    field.value = asked.get("filter") ?? "";
    baseline.value = asked.get("to") ?? "";
    apply();
  }

  function keep() {
    apply();
    const asked = new URLSearchParams();
    if (field.value.trim()) asked.set("filter", field.value.trim());
    if (baseline.value) asked.set("to", baseline.value);
    history.replaceState(null, "", asked.size ? `#${asked}` : location.pathname);
  }

  function toggle(chip) {
    const words = chip.textContent.split(" ");
    const others = field.value.split(/\s+/).filter(word => word && !words.some(own => plain(own) === plain(word)));
    field.value = [...others, ...(chip.ariaPressed === "true" ? [] : words)].join(" ");
    keep();
  }

  field.addEventListener("input", keep);
  baseline.addEventListener("change", keep);
  for (const chip of chips) chip.addEventListener("click", () => toggle(chip));
  addEventListener("hashchange", recall);
  for (const line of document.querySelectorAll(".filter")) line.hidden = false;
  recall();
})();
