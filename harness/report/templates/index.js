// Shows what has all words of the filter; the address keeps them.
(() => {
  "use strict";
  const field = document.getElementById("filter");
  if (!field) return;
  const found = document.querySelector(".filter output");
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
