"use strict";
(() => {
  const status = document.getElementById("status");
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const say = (text) => (status.textContent = text);
  const charts = drawCharts({ all, say, tip });

  const sortBy = (table, column, head) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      if ("value" in cell.dataset) return Number(cell.dataset.value);
      const text = shown(cell);
      return text === "–" ? null : text;
    };
    const byText = new Intl.Collator("en", { numeric: true }).compare; // 16 comes after 2
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : byText(String(a), String(b)));
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
      if (!head.textContent.trim()) return; // a button needs a name
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, column, head));
      head.replaceChildren(button);
    });
  }

  const heads = (table) => all("th[data-head]", table).map((head) => head.dataset.head);
  const rowsOf = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => [...row.cells]);
  const shown = (cell) => cell.querySelector(".v").textContent;

  /* A copy has no colours: marks, intervals, title and notes travel as text. */
  const MARKS = { best: "*", invalid: "†", inferred: "‡" };
  const marked = (cell) => {
    const small = all("small", cell).map((part) => part.textContent).join(", ");
    const inWords = cell.querySelector(".against") ? "best" : "";
    const marks = Object.keys(MARKS).filter((name) => name !== inWords && cell.classList.contains(name)).map((name) => MARKS[name]).join("");
    return [shown(cell), small && `(${small})`, marks].filter(Boolean).join(" ");
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

  /* Whether it could be copied. A page that is not from https or this machine has no clipboard but the old one. */
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const focused = document.activeElement;
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      focused.focus();
      return done;
    }
  };
  /* What was found, for the notes of a release: verdict, table, and the chart as a file beside them. */
  const notes = (figure) => {
    const article = figure.closest("article");
    const words = (element) => element.textContent.replace(/\s+/g, " ").trim();
    const parts = [`### ${words(article.querySelector(".title"))}`, ...all("header.run > .eyebrow, .verdict:not([hidden]) p", article).map(words)];
    const warned = all(".badge.warn .notices p, .badge.bad .notices p", article).map(words);
    parts.push(...warned.map((notice) => `> ${notice}`), markdown(figure));
    const card = article.querySelector(".first figure.card:not([hidden])");
    if (card) {
      const name = card.querySelector("[data-save]").dataset.save;
      save(card, name);
      parts.push(`![${words(card.querySelector("figcaption .name"))}](${name}.png)`);
    }
    return parts.join("\n\n");
  };
  const copied = {
    notes,
    markdown,
    csv,
    data: (figure) => charts.cards.get(figure.querySelector(".plot")).csv(),
    command: (box) => box.querySelector("pre").textContent,
  };

  const save = (figure, name) => {
    const link = document.createElement("a");
    link.href = charts.picture(figure).toDataURL("image/png");
    link.download = `${name}.png`;
    link.click();
  };

  for (const tools of all(".tools")) {
    tools.hidden = false;
    const box = tools.closest("figure, .command");
    for (const button of all("button", tools)) {
      const label = button.textContent;
      button.addEventListener("click", async () => {
        const { copy: what, save: name } = button.dataset;
        let done = "Saved";
        if (what) done = (await copy(copied[what](box))) ? "Copied" : "Not copied";
        else save(box, name);
        button.textContent = status.textContent = done;
        setTimeout(() => (button.textContent = label), 1500);
      });
    }
  }

  for (const details of all("details.data")) {
    details.hidden = false;
    details.addEventListener("toggle", () => {
      const pre = details.querySelector("pre");
      if (details.open && !pre.textContent) pre.textContent = copied.data(details.closest("figure"));
    });
  }

  /* Engines and percentiles: the same in all charts of a chapter, and in the address. */
  const show = (article, changed) => {
    const chapter = charts.chapters.get(article);
    Object.assign(chapter, changed);
    for (const button of all(".legend button", article)) button.setAttribute("aria-pressed", !chapter.hidden.has(button.dataset.label));
    for (const pick of all("select[data-view]", article)) {
      const names = [...pick.options].map((option) => option.value);
      pick.selectedIndex = Math.max(0, names.indexOf(chapter.view));
      for (const words of all("[data-first-view]", article)) words.hidden = pick.selectedIndex > 0;
    }
    charts.update(chapter);
  };
  for (const button of all(".legend button")) {
    const article = button.closest("article, header.several");
    const { label } = button.dataset;
    const labels = () => [...new Set(all(".legend button", article).map((other) => other.dataset.label))];
    const alone = () => {
      const { hidden } = charts.chapters.get(article);
      const others = labels().filter((other) => other !== label);
      const isAlone = others.every((other) => hidden.has(other)) && !hidden.has(label);
      show(article, { hidden: new Set(isAlone ? [] : others) });
      say(isAlone ? "All engines shown." : `${label} shown alone.`);
      remember();
    };
    button.addEventListener("click", () => {
      const hidden = new Set(charts.chapters.get(article).hidden);
      if (!hidden.delete(label)) hidden.add(label);
      show(article, { hidden });
      say(`${label} ${hidden.has(label) ? "hidden" : "shown"}.`);
      remember();
    });
    button.addEventListener("dblclick", alone);
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.shiftKey) return;
      event.preventDefault();
      alone();
    });
  }
  for (const pick of all("select[data-view]")) {
    const article = pick.closest("article, header.several");
    pick.closest("label").hidden = false;
    pick.addEventListener("change", () => {
      show(article, { view: pick.value });
      remember();
    });
  }

  /* What is compared. What is for another load, baseline or pair is hidden, and so are other engines everywhere. */
  const picksOf = (article) => Object.fromEntries(all("select[data-choose]", article).map((pick) => [pick.dataset.choose, pick]));
  const choose = (article) => {
    const { load, against, other } = picksOf(article);
    if (!load) return;
    const labels = against ? [...against.options].map((option) => option.text) : [];
    if (other?.value === against?.value) other.value = "";
    const pair = other?.value ? [against.value, other.value].sort((a, b) => a - b) : [];
    const wanted = { load: load.value, against: against?.value ?? "0", pair: pair.join("-") };
    for (const part of all("[data-load], [data-against]", article)) {
      part.hidden = Object.keys(wanted).some((name) => name in part.dataset && part.dataset[name] !== wanted[name]);
    }
    const others = new Set(pair.length ? labels.filter((_, i) => !pair.includes(`${i}`)) : []);
    for (const head of all("tbody th .v", article)) {
      if (labels.includes(head.textContent)) head.closest("tr").hidden = others.has(head.textContent);
    }
    for (const badge of all("[data-of]", article)) {
      badge.hidden = pair.length > 0 && !badge.dataset.of.split(" ").some((place) => pair.includes(place));
    }
    show(article, { hidden: others, others });
  };
  for (const group of all(".choose")) {
    group.hidden = false;
    const article = group.closest("article");
    if (picksOf(article).other?.value) choose(article);
    for (const pick of all("select", group)) {
      pick.addEventListener("change", () => {
        choose(article);
        say(article.querySelector(".verdict:not([hidden]) p").textContent);
        remember();
      });
    }
  }

  /* The address keeps what is shown: #compare=…&with=…&load=…&engine=…&metric=…&show=…&at=…. */
  let place = "";
  const ADDRESSED = { other: "compare", against: "with", load: "load" };
  const remember = () => {
    const state = new URLSearchParams();
    [...charts.chapters].forEach(([article, { hidden, others, view }], i) => {
      const prefix = i ? `${article.id}.` : "";
      for (const [name, pick] of Object.entries(picksOf(article))) {
        const [first] = all("option[selected]", pick);
        if (pick.selectedOptions[0] !== (first ?? pick.options[0])) state.set(`${prefix}${ADDRESSED[name]}`, pick.selectedOptions[0].text);
      }
      const shown = [...new Set(all(".legend button", article).map((button) => button.dataset.label))].filter((label) => !hidden.has(label));
      if (`${[...hidden]}` !== `${[...(others ?? [])]}`) for (const label of shown.length ? shown : [""]) state.append(`${prefix}engine`, label);
      if (view) state.set(`${prefix}show`, view);
      const open = all("details.metric[open]", article).map((details) => details.dataset.metric);
      for (const metric of open) state.append(`${prefix}metric`, metric);
    });
    if (place) state.set("at", place);
    history.replaceState(null, "", `#${state}`);
  };
  const recall = () => {
    const address = location.hash.slice(1);
    if (!address.includes("=")) return;
    const state = new URLSearchParams(address);
    [...charts.chapters.keys()].forEach((article, i) => {
      const prefix = i ? `${article.id}.` : "";
      const labels = [...new Set(all(".legend button", article).map((button) => button.dataset.label))];
      const named = state.getAll(`${prefix}engine`).flatMap((name) => (labels.includes(name) ? [name] : name.split(",")));
      for (const [name, pick] of Object.entries(picksOf(article))) {
        const wanted = state.get(`${prefix}${ADDRESSED[name]}`);
        const found = [...pick.options].find((option) => option.text === wanted);
        const [first] = all("option[selected]", pick);
        (found ?? first ?? pick.options[0]).selected = true;
      }
      choose(article);
      const { others } = charts.chapters.get(article);
      const isKnown = named.some((name) => !name || labels.includes(name)); // an empty name: none is shown
      const hidden = new Set(isKnown ? labels.filter((label) => !named.includes(label)) : others);
      show(article, { hidden, view: state.get(`${prefix}show`) ?? "" });
      const metrics = state.getAll(`${prefix}metric`);
      const opened = all("details.metric", article).filter((details) => metrics.includes(details.dataset.metric));
      for (const details of opened) details.open = true;
      if (opened.length && !state.has("at")) opened[0].scrollIntoView();
    });
    place = state.get("at") ?? "";
    document.getElementById(place)?.scrollIntoView();
  };
  recall();
  addEventListener("hashchange", recall);
  for (const details of all("details.metric")) details.addEventListener("toggle", remember);
  for (const link of all("nav.contents a")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // it opens elsewhere
      event.preventDefault();
      place = link.hash.slice(1);
      const target = document.getElementById(place);
      target.closest("details")?.setAttribute("open", "");
      target.scrollIntoView();
      target.tabIndex = -1;
      target.focus({ preventScroll: true }); // the next Tab goes on from there
      remember();
    });
  }

  for (const time of all("header.run time")) {
    const days = Math.floor((Date.now() - Date.parse(time.dateTime)) / 864e5);
    if (days >= 0) time.after(days ? ` (${days} day${days === 1 ? "" : "s"} ago)` : " (today)");
  }

  /* What a term means, beside it. */
  let asked = null;
  for (const button of all("button.term")) button.addEventListener("click", () => (asked = button));
  for (const meaning of all(".meaning")) {
    meaning.addEventListener("toggle", ({ newState }) => {
      if (newState !== "open" || !asked) return;
      const box = asked.getBoundingClientRect();
      const below = box.bottom + meaning.offsetHeight + 12 < innerHeight;
      Object.assign(meaning.style, {
        margin: 0, inset: "auto", left: `${Math.max(8, Math.min(box.left, innerWidth - meaning.offsetWidth - 8))}px`,
        top: `${below ? box.bottom + 6 : Math.max(8, box.top - meaning.offsetHeight - 6)}px`,
      });
    });
  }

  /* What a million tokens cost, of a price that a reader types. */
  for (const line of all(".price")) {
    line.hidden = false;
    const table = line.parentElement.querySelector("figure[data-name=frontier] table");
    const rate = heads(table).findIndex((head) => /^tok\/s per (GPU|machine)/.test(head));
    line.querySelector("input").addEventListener("input", ({ target }) => {
      table.closest("details").open = true;
      for (const old of all(".cost", table)) old.remove();
      if (!(target.valueAsNumber > 0)) return;
      const head = Object.assign(document.createElement("th"), { scope: "col", className: "n cost", textContent: "cost of a million" });
      head.dataset.head = head.textContent;
      table.tHead.rows[table.tHead.rows.length - 1].append(head);
      for (const row of table.tBodies[0].rows) {
        const cost = (target.valueAsNumber * 1e6) / 3600 / Number(row.cells[rate].dataset.value);
        const cell = Object.assign(row.insertCell(), { className: "n cost" });
        cell.append(Object.assign(document.createElement("span"), { className: "v", textContent: Number.isFinite(cost) ? cost.toPrecision(3) : "–" }));
      }
    });
  }

  /* Paper has the answer, or with ?print=all or the button everything. */
  const root = document.documentElement;
  root.classList.toggle("everything", /[?&]print=all\b/.test(location.search));
  const printAll = document.getElementById("print");
  if (printAll) printAll.hidden = false;
  printAll?.addEventListener("click", () => {
    root.classList.add("everything");
    print();
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = root.classList.contains("everything") ? all("details:not([open]):not(.data)") : [];
    for (const details of opened) details.open = true;
    charts.print(true);
  });
  addEventListener("afterprint", () => {
    charts.print(false);
    for (const details of opened) details.open = false;
  });
})();
