"use strict";
(() => {
  const status = document.getElementById("status");

  const sortBy = (table, column, head) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      if ("value" in cell.dataset) return Number(cell.dataset.value);
      const text = cell.querySelector(".v").textContent;
      return text === "–" ? null : text;
    };
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const rows = [...body.rows].map((row) => [key(row), row]);
    const known = rows.filter(([value]) => value !== null).sort(([a], [b]) => (ascending ? compare(a, b) : compare(b, a)));
    const unknown = rows.filter(([value]) => value === null);
    body.append(...[...known, ...unknown].map(([, row]) => row));
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    status.textContent = `Sorted by ${head.dataset.head}, ${ascending ? "ascending" : "descending"}.`;
  };

  const cells = (table) => [
    [...table.querySelectorAll("th[data-head]")].map((head) => head.dataset.head),
    ...[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.querySelector(".v").textContent)),
  ];
  const markdown = ([head, ...rows]) => {
    const line = (texts) => `| ${texts.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
    return [line(head), line(head.map((_, i) => (i ? "---:" : "---"))), ...rows.map(line)].join("\n");
  };
  const csv = (lines) =>
    lines.map((texts) => texts.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",")).join("\n");

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  for (const table of document.querySelectorAll("figure.table table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.querySelectorAll("th[data-head]")].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, column, head));
      head.replaceChildren(button);
    });
  }

  for (const tools of document.querySelectorAll(".tools")) {
    tools.hidden = false;
    for (const button of tools.querySelectorAll("button")) {
      const label = button.textContent;
      button.addEventListener("click", async () => {
        const kind = button.dataset.copy;
        if (kind === "command") await copy(tools.parentElement.querySelector("pre").textContent);
        else await copy((kind === "csv" ? csv : markdown)(cells(tools.closest("figure").querySelector("table"))));
        button.textContent = status.textContent = "Copied";
        setTimeout(() => (button.textContent = label), 1500);
      });
    }
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
