"use strict";
(() => {
  const status = document.getElementById("status");
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const sortBy = (table, column, head) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      if ("value" in cell.dataset) return Number(cell.dataset.value);
      const text = shown(cell);
      return text === "–" ? null : text;
    };
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const rows = [...body.rows].map((row) => [key(row), row]);
    const known = rows.filter(([value]) => value !== null).sort(([a], [b]) => (ascending ? compare(a, b) : compare(b, a)));
    const unknown = rows.filter(([value]) => value === null);
    body.append(...[...known, ...unknown].map(([, row]) => row));
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    status.textContent = `Sorted by ${head.dataset.head}, ${ascending ? "ascending" : "descending"}.`;
  };

  for (const table of all("figure.table table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    all("th[data-head]", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, column, head));
      head.replaceChildren(button);
    });
  }

  const heads = (table) => all("th[data-head]", table).map((head) => head.dataset.head);
  const rowsOf = (table) => [...table.tBodies[0].rows].map((row) => [...row.cells]);
  const shown = (cell) => cell.querySelector(".v").textContent;

  /* A copy has no colours: marks, intervals, title and notes travel as text. */
  const MARKS = { best: "*", invalid: "†", inferred: "‡" };
  const marked = (cell) => {
    const small = cell.querySelector("small");
    const marks = Object.keys(MARKS).filter((name) => cell.classList.contains(name)).map((name) => MARKS[name]).join("");
    return [shown(cell), small && `(${small.textContent})`, marks].filter(Boolean).join(" ");
  };
  const markdown = (figure) => {
    const table = figure.querySelector("table");
    const line = (texts) => `| ${texts.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
    const head = heads(table);
    const rule = line(head.map((_, i) => (i ? "---:" : "---")));
    const body = rowsOf(table).map((row) => line(row.map(marked)));
    const notes = figure.dataset.notes.split("\n").filter(Boolean).map((note) => `\n${note}`);
    return [`**${figure.dataset.title}**\n`, line(head), rule, ...body, ...notes].join("\n");
  };

  /* Numbers as they were measured. What is measured with an interval, or may be invalid, is a row of its own. */
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const raw = (cell) => cell.dataset.value ?? (shown(cell) === "–" ? "" : shown(cell));
  const csv = (figure) => {
    const table = figure.querySelector("table");
    const head = heads(table);
    let lines = [head, ...rowsOf(table).map((row) => row.map(raw))];
    if (table.querySelector("td[data-lo], td.invalid[data-value], td.inferred")) {
      const cells = rowsOf(table).flatMap(([label, ...row]) =>
        row.map((cell, i) => [
          shown(label), head[i + 1], raw(cell), cell.dataset.lo ?? "", cell.dataset.hi ?? "",
          String(!cell.classList.contains("invalid")),
          Object.keys(MARKS).filter((name) => name !== "invalid" && cell.classList.contains(name)).join(" "),
          cell.title,
        ]),
      );
      lines = [[head[0], "metric", "value", "lo", "hi", "valid", "mark", "notices"], ...cells];
    }
    return lines.map((texts) => texts.map(quoted).join(",")).join("\n");
  };

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
  const copied = {
    markdown,
    csv,
    data: (figure) => figure.querySelector(".data pre").textContent,
    command: (box) => box.querySelector("pre").textContent,
  };

  /* A figure as it stands alone: its own legend, and colours that need no page. */
  const standalone = (svg) => {
    const whole = svg.cloneNode(true);
    const [, , width, height] = svg.dataset.whole.split(" ");
    whole.setAttribute("viewBox", svg.dataset.whole);
    whole.setAttribute("width", 2 * width);
    whole.setAttribute("height", 2 * height);
    whole.setAttribute("font-family", "Helvetica, Arial, sans-serif");
    for (const point of all("[data-tip]", whole)) point.removeAttribute("data-tip");
    return new XMLSerializer().serializeToString(whole);
  };
  const save = (address, name) => {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  };
  const saved = {
    svg: (text, name) => save(`data:image/svg+xml,${encodeURIComponent(text)}`, `${name}.svg`),
    png: async (text, name) => {
      const image = new Image();
      image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
      await image.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
      canvas.getContext("2d").drawImage(image, 0, 0);
      save(canvas.toDataURL("image/png"), `${name}.png`);
    },
  };

  for (const tools of all(".tools")) {
    tools.hidden = false;
    const box = tools.closest("figure, .command");
    for (const button of all("button", tools)) {
      const label = button.textContent;
      button.addEventListener("click", async () => {
        const { copy: what, save: kind, name } = button.dataset;
        if (what) await copy(copied[what](box));
        else await saved[kind](standalone(box.querySelector("svg")), name);
        button.textContent = status.textContent = what ? "Copied" : "Saved";
        setTimeout(() => (button.textContent = label), 1500);
      });
    }
  }

  for (const button of all(".legend button")) {
    const chapter = button.closest("article");
    const own = `[data-series="${button.dataset.series}"]`;
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      for (const twin of all(`.legend button${own}`, chapter)) twin.setAttribute("aria-pressed", shown);
      for (const part of all(`svg ${own}`, chapter)) part.style.display = shown ? "" : "none";
      status.textContent = `${button.querySelector("bdi").textContent} ${shown ? "shown" : "hidden"}.`;
    });
  }

  for (const pick of all("select[data-baseline]")) {
    const chapter = pick.closest("article");
    pick.closest("p").hidden = false;
    pick.addEventListener("change", () => {
      for (const twin of all("select[data-baseline]", chapter)) twin.value = pick.value;
      for (const part of all("div[data-baseline]", chapter)) part.hidden = part.dataset.baseline !== pick.value;
    });
  }

  /* The point nearest to the pointer, within reach of a finger. */
  const REACH = 28;
  const near = (svg, x, y) => {
    let best = null;
    let least = REACH;
    for (const point of all("[data-tip]", svg)) {
      const box = point.getBoundingClientRect();
      if (!box.width && !box.height) continue;
      const distance = Math.hypot(box.x + box.width / 2 - x, box.y + box.height / 2 - y);
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  };
  const show = (point) => {
    tip.replaceChildren(
      ...point.dataset.tip.split(" · ").map((text) => Object.assign(document.createElement("span"), { textContent: text })),
    );
    tip.hidden = false;
    const at = point.getBoundingClientRect();
    const left = Math.min(at.right + 10, innerWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 6;
    tip.style.transform = `translate(${Math.max(8, left)}px, ${above > 0 ? above : at.bottom + 6}px)`;
  };
  for (const svg of all(".card svg")) {
    svg.addEventListener("pointermove", (event) => {
      const point = near(svg, event.clientX, event.clientY);
      if (point) show(point);
      else tip.hidden = true;
    });
    svg.addEventListener("pointerleave", () => (tip.hidden = true));
  }
  addEventListener("scroll", () => (tip.hidden = true), { passive: true });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open]):not(.data)");
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
