// Shows what has all words of the filter; the address keeps them.
(() => {
  "use strict";
  const field = document.getElementById("filter");
  if (!field) return;
  const found = document.querySelector(".filter output");
  const text = element => element.dataset.filter.toLowerCase();

  function apply() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = text => words.every(word => text.includes(word));
    let loads = 0;
    for (const part of document.querySelectorAll(":is(tbody, details, li)[data-filter]")) {
      const rows = [...part.querySelectorAll("tr[data-filter]")];
      for (const row of rows) row.hidden = !matches(`${text(part)} ${text(row)}`);
      const shown = rows.filter(row => !row.hidden).length;
      part.hidden = rows.length ? !shown : !matches(text(part));
      if (part.matches("tbody")) loads += shown;
    }
    found.textContent = words.length ? `${loads} ${loads === 1 ? "load" : "loads"}` : "";
  }

  function recall() {
    const asked = new URLSearchParams(location.hash.slice(1)).get("filter");
    if (asked === null && location.hash) return; // a place in the page
    field.value = asked ?? "";
    apply();
  }

  field.addEventListener("input", () => {
    apply();
    const words = field.value.trim();
    history.replaceState(null, "", words ? `#${new URLSearchParams({ filter: words })}` : location.pathname);
  });
  addEventListener("hashchange", recall);
  document.querySelector(".filter").hidden = false;
  recall();
})();
