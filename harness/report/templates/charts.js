/* Draws the charts of the page with uPlot, from the data block `charts`, on screen and for print. */
const drawCharts = ({ all, say, tip }) => {
  const page = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  root.classList.add("charts");
  const finite = (value) => value !== null && value !== undefined && Number.isFinite(value);
  /* From so many decades on, a logarithmic axis has marks at powers of ten alone. */
  const manyDecades = 2.5;
  /* The ends of a logarithmic axis that holds `low` to `high`: it begins at one of its marks. */
  const logEnds = (low, high) => {
    const power = 10 ** Math.floor(Math.log10(low));
    const mark = [5, 2, 1].find((digit) => digit * power <= low) * power;
    return [Math.log10(high / mark) < manyDecades ? mark : power, high];
  };
  const text = (value) => (finite(value) ? value.toLocaleString("en-US", { maximumSignificantDigits: 4 }) : "–");
  const paint = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isPrinting = () => root.classList.contains("printing");
  const colorOf = (color) => (dark.matches && !isPrinting() && page.dark[color]) || color;
  const PRINT_WIDTH = 440; // in CSS pixels, of a chart that takes half the width of paper

  /* ---- What is shown: engines by chapter; view, logarithm and zoom by card. ---- */
  const chapters = new Map(all("article, header.several").map((article) => [article, { hidden: new Set(), others: new Set(), view: "", cards: [] }]));

  const inView = (series, view) => {
    if (!view) return series;
    if (!view.parts.includes(series.part ?? "")) return null;
    const changed = { ...series };
    if (view.marks?.includes(series.part)) Object.assign(changed, { kind: "points", hollow: true });
    if (view.whiskers === false && series.kind !== "band") changed.whiskers = false;
    return changed;
  };

  class Card {
    constructor(figure, host, chapter) {
      this.figure = figure;
      this.host = host;
      this.chapter = chapter;
      this.chart = page.charts[host.dataset.chart];
      this.looks = page.looks[host.dataset.looks];
      this.log = { x: !!this.chart.x.log, y: !!this.chart.y.log };
      this.zoom = null;
      this.panels = [];
      this.at = -1;
      this.tools();
    }

    get view() {
      const { views } = this.chart;
      if (!views.length) return null;
      return views.find((view) => view.name === this.chapter.view) ?? views[0];
    }

    get series() {
      const shown = this.chart.series.map((series) => inView(series, this.view));
      return shown.filter((series) => series && !this.chapter.hidden.has(series.label));
    }

    /* Every point that can be read, in the order of the series. */
    get points() {
      return this.series.flatMap((series) =>
        series.kind === "band" || (series.kind === "line" && series.markers === false && series.x.length > 130)
          ? []
          : series.x.map((x, i) => ({
              series, i, x: series.kind === "spans" ? (series.low[i] + series.high[i]) / 2 : x, y: series.y[i],
            })),
      );
    }

    /* Parts that have colours and hatches of their own. */
    get parts() {
      return [...new Set(this.chart.series.filter((series) => series.color).map((series) => series.part))];
    }

    get labels() {
      return [...new Set(this.series.map((series) => series.label))];
    }

    range(which) {
      const axis = this.chart[which];
      if (this.zoom?.[which]) return this.zoom[which];
      if (axis.ends) return axis.ends;
      const places = axis.ticks?.map(([place]) => place);
      const values = this.series.flatMap((series) => {
        const ends = [...(series.low ?? []), ...(series.high ?? [])];
        if (series.kind === "spans") return which === "x" ? ends : series.y;
        if (which === "x") return series.x;
        return series.kind === "band" ? ends : [...series.y, ...(series.low && series.whiskers !== false ? ends : [])];
      });
      if (places) {
        const [low, high] = [Math.min(...places), Math.max(...places)];
        const margin = 0.08 * (high - low) || 0.6;
        return [low - margin, high + margin];
      }
      const log = this.log[which];
      let [low, high] = [Infinity, -Infinity];
      for (const value of values) {
        if (!finite(value) || (log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
      if (low > high) return log ? [0.1, 1] : [0, 1];
      return log ? logEnds(low / 1.05, high * 1.15) : [Math.min(0, low), high * 1.06 || 1];
    }

    /* Where a text of that width above `y` covers no marker, as far to the right as there is room. */
    free(u, y, width, left, right, ratio) {
      const few = this.series.filter((series) => series.kind !== "band" && series.x.length <= 100);
      const marks = few.flatMap((series) => series.x.map((x, i) =>
        [u.valToPos(x, "x", true) + this.shift(u, series.label) * ratio, u.valToPos(series.y[i], "y", true)]));
      const near = 7 * ratio;
      for (let start = right - width; start > left; start -= width / 4) {
        const covers = ([x, at]) => x > start - near && x < start + width + near && Math.abs(at - y + 8 * ratio) < 8 * ratio + near;
        if (!marks.some(covers)) return start;
      }
      return right - width;
    }

    /* How far an engine stands from its place, in CSS pixels. */
    shift(u, label) {
      if (!this.chart.dodge || this.multiples) return 0;
      const { labels } = this;
      const places = this.chart.x.ticks.map(([place]) => u.valToPos(place, "x")).sort((a, b) => a - b);
      const gaps = places.slice(1).map((place, i) => place - places[i]);
      const room = gaps.length ? Math.min(...gaps) : u.bbox.width / devicePixelRatio;
      const step = Math.min(gaps.length ? 8 : 28, (0.7 * room) / labels.length);
      return (labels.indexOf(label) - (labels.length - 1) / 2) * step;
    }

    get multiples() {
      return this.chart.multiples && this.labels.length > page.many;
    }

    tools() {
      const button = (name, title, action) => {
        const made = Object.assign(document.createElement("button"), { type: "button", textContent: name, title });
        made.addEventListener("click", action);
        return made;
      };
      this.reset = button("Reset zoom", "Show everything again (Escape)", () => this.zoomTo(null));
      this.reset.hidden = true;
      const bar = this.figure.querySelector(".chart-tools");
      bar.append(this.reset);
      for (const which of ["y", "x"]) {
        const axis = this.chart[which];
        if (axis.ticks || axis.down || this.chart.series.some((series) => series.kind === "spans")) continue;
        if (which === "x" && /seconds/.test(axis.label)) continue;
        const log = button(`log ${which}`, `Logarithmic ${which === "y" ? "vertical" : "horizontal"} axis`, () => {
          this.log[which] = !this.log[which];
          log.setAttribute("aria-pressed", this.log[which]);
          this.zoom = null;
          this.reset.hidden = true;
          this.rebuild();
          say(`${axis.label}: ${this.log[which] ? "logarithmic" : "linear"}.`);
        });
        log.setAttribute("aria-pressed", this.log[which]);
        bar.append(log);
      }
      bar.hidden = false;
    }

    zoomTo(zoom) {
      if (zoom?.x && this.chart.x.ticks) { // between two loads nothing was measured: lines end at both
        const places = this.chart.x.ticks.map(([place]) => place).sort((a, b) => a - b);
        const [low, high] = zoom.x;
        const ends = [places.findLast((place) => place <= low) ?? places[0], places.find((place) => place >= high) ?? places.at(-1)];
        const margin = 0.08 * (ends[1] - ends[0]) || 0.6;
        zoom.x = [ends[0] - margin, ends[1] + margin];
      }
      this.zoom = zoom;
      if (!zoom && document.activeElement === this.reset) this.host.focus(); // the button goes
      this.reset.hidden = !zoom;
      this.refresh();
      if (!zoom) say("Zoom reset.");
    }

    build() {
      const { labels } = this;
      const multiples = this.multiples;
      this.host.classList.toggle("multiples", multiples);
      this.drawnAs = multiples ? labels.join("\n") : "";
      this.panels = (multiples ? labels : [null]).map((only) => {
        const box = document.createElement("div");
        if (only !== null) box.append(Object.assign(document.createElement("p"), { textContent: only }));
        const canvas = document.createElement("div");
        box.append(canvas);
        this.host.append(box);
        return this.panel(canvas, only);
      });
      this.report();
    }

    rebuild() {
      for (const panel of this.panels) panel.destroy();
      this.host.replaceChildren();
      this.panels = [];
      this.build();
    }

    /* A chart of some engines alone says nothing while these are hidden. */
    get isEmpty() {
      const own = [...new Set(this.chart.series.map((series) => series.label))];
      const isOfAll = own.length === 0 || own.length === Object.keys(this.looks).length;
      return !isOfAll && own.every((label) => this.chapter.hidden.has(label));
    }

    refresh() {
      this.figure.classList.toggle("empty", this.isEmpty);
      if (!this.panels.length) return;
      if (this.drawnAs !== (this.multiples ? this.labels.join("\n") : "")) return this.rebuild();
      for (const panel of this.panels) this.place(panel);
      this.report();
    }

    /* What is drawn, in the title and for readers of the page's code and its tests. */
    report() {
      const [first] = this.chart.views;
      if (first) {
        const { title } = this.chart;
        const named = title.includes(first.name) ? title.replace(first.name, this.view.name) : title.replace(",", ` ${this.view.name},`);
        this.figure.querySelector("figcaption .name").textContent = this.view === first ? title : named;
      }
      Object.assign(this.host.dataset, {
        shown: JSON.stringify(this.labels),
        view: this.view?.name ?? "",
        rangeX: JSON.stringify(this.range("x")),
        rangeY: JSON.stringify(this.range("y")),
      });
    }

    place(u) {
      u.batch(() => {
        for (const which of ["x", "y"]) {
          const [min, max] = this.range(which);
          u.setScale(which, { min, max });
        }
      });
      u.redraw(false, true);
    }

    get height() {
      return parseFloat(getComputedStyle(this.figure).getPropertyValue("--plot"));
    }

    size(canvas, small) {
      const width = isPrinting() && !small ? PRINT_WIDTH : Math.max(160, canvas.clientWidth);
      return { width, height: small ? 150 : this.height };
    }

    /* Draws it in the size and the colours of where it is now: a window, or paper. */
    resize() {
      if (!this.panels.length) this.build();
      for (const panel of this.panels) panel.setSize(this.size(panel.root.parentElement, panel.only !== null));
      this.refresh();
    }

    panel(canvas, only) {
      const { chart } = this;
      const small = only !== null;
      const font = `${small ? 11 : 12}px ${getComputedStyle(document.body).fontFamily}`;
      /* Of the vertical axis: its widest label, within reason. */
      const width = (u, labels) => {
        u.ctx.save(); // uPlot sets its font only where it takes it to be another
        u.ctx.font = font;
        const widest = Math.max(0, ...(labels ?? []).map((label) => u.ctx.measureText(label).width));
        u.ctx.restore();
        return Math.min(Math.max(50, Math.ceil(widest) + 8), 0.42 * canvas.clientWidth);
      };
      /* Of the places of an axis those whose numbers, each this much to both sides, do not touch: the important ones
         first, then from the top or from the left. */
      const apart = (u, which, places, half, important = () => false) => {
        const taken = [];
        const fits = (place) => {
          const [at, reach] = [u.valToPos(place, which), half(place)];
          const free = taken.every(([from, to]) => at + reach <= from || at - reach >= to);
          if (free) taken.push([at - reach, at + reach]);
          return free;
        };
        const named = places.filter((place) => place !== null);
        if (which === "y") named.reverse();
        const kept = new Set([...named.filter(important), ...named.filter((place) => !important(place))].filter(fits));
        return places.map((place) => (kept.has(place) ? place : null));
      };
      const halfWidth = (name) => (place) => 3.6 * name(place).length + 2;
      const halfHeight = () => 6.5;
      const axis = (which) => {
        const { ticks, label } = chart[which];
        const made = {
          scale: which,
          font,
          stroke: () => paint("--muted"),
          grid: { show: which === "y" && !chart.y.down, stroke: () => paint("--rule"), width: 1 },
          ticks: { show: false },
          border: { show: which === "x", stroke: () => paint("--muted"), width: 1 },
          size: which === "x" ? 24 : width,
          gap: 6,
        };
        if (ticks) {
          const name = new Map(ticks);
          const unit = ticks[0][1].replace(/^[\d.,]+/, "");
          made.splits = (u) => {
            const { min, max } = u.scales[which];
            const within = ticks.map(([place]) => place).filter((place) => place >= min && place <= max);
            if (which === "x" || chart.y.down || within.length > 2) return within;
            const step = 10 ** Math.floor(Math.log10((max - min) / 2));
            return Array.from({ length: 20 }, (_, i) => (Math.ceil(min / step) + i) * step).filter((place) => place <= max);
          };
          made.values = (u, places) => places.map((place) => name.get(place) ?? "");
          if (which === "y") {
            made.filter = (u, places) => (chart.y.down ? places : apart(u, which, places, halfHeight));
            made.values = (u, places) => places.map((place) => { if (place === null) return ""; const tick = name.get(place) ?? `${text(place)}${unit}`; return tick.length > 24 ? `${tick.slice(0, 23)}…` : tick; });
          } else made.filter = (u, places) => apart(u, which, places, halfWidth((place) => name.get(place) ?? ""));
        } else if (this.log[which]) {
          made.splits = (u) => {
            const { min, max } = u.scales[which];
            const powers = Array.from({ length: Math.ceil(Math.log10(max / min)) + 2 }, (_, i) => 10 ** (Math.floor(Math.log10(min)) + i));
            const round = powers.flatMap((power) => [1, 2, 3, 4, 5, 6, 7, 8, 9].map((digit) => digit * power)).filter((value) => value >= min && value <= max);
            if (round.length > 1) return round;
            const step = 10 ** Math.floor(Math.log10((max - min) / 2));
            return Array.from({ length: 20 }, (_, i) => (Math.ceil(min / step) + i) * step).filter((value) => value <= max);
          };
          made.filter = (u, places) => {
            const decades = Math.log10(u.scales[which].max / u.scales[which].min);
            const named = decades < 0.8 ? /^\d\.0+e/ : decades < manyDecades ? /^[125]\.0+e/ : /^1\.0+e/;
            const kept = places.map((value) => (value && named.test(value.toExponential(3)) ? value : null));
            const some = kept.some((value) => value !== null) ? kept : places;
            const isPower = (value) => /^1\.0+e/.test(value.toExponential(3));
            return apart(u, which, some, which === "y" ? halfHeight : halfWidth(text), isPower);
          };
          made.values = (u, values) => values.map((value) => (value === null ? "" : text(value)));
          made.space = 0;
        } else {
          made.values = (u, values) => values.map(text);
          made.space = which === "x" ? 60 : 28;
        }
        if (which === "x" && !small) {
          made.label = `${label} →`;
          made.labelFont = font;
          made.labelSize = 18;
        } else if (which === "y") made.side = 3;
        return made;
      };
      const scale = (which) => ({
        time: false,
        auto: false,
        distr: this.log[which] ? 3 : 1,
        dir: chart[which].down ? -1 : 1,
        range: () => this.range(which),
      });
      const facets = [{ scale: "x", auto: false }, { scale: "y", auto: false }];
      const options = {
        mode: 2,
        ...this.size(canvas, small),
        padding: [10, chart.x.ticks ? 14 : 24, 0, 0], // half of the last number's width
        legend: { show: false },
        scales: { x: scale("x"), y: scale("y") },
        axes: [axis("x"), axis("y")],
        series: [null, { facets, paths: (u) => { this.draw(u, only); return null; } }],
        cursor: {
          x: false,
          y: false,
          points: { show: false },
          dataIdx: () => null,
          drag: { x: true, y: true, uni: 24, setScale: false },
          bind: { dblclick: () => () => { this.zoomTo(null); return null; } },
        },
        hooks: {
          setSelect: [
            (u) => {
              const { left, top, width, height } = u.select;
              if (width < 4 && height < 4) return;
              const sorted = (a, b, which) => [u.posToVal(a, which), u.posToVal(b, which)].sort((p, q) => p - q);
              const whole = { x: width >= u.over.clientWidth - 2, y: height >= u.over.clientHeight - 2 };
              const zoom = { ...this.zoom };
              if (width && !whole.x) zoom.x = sorted(left, left + width, "x");
              if (height && !whole.y) zoom.y = sorted(top, top + height, "y");
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              this.zoomTo(zoom);
              say("Zoomed in. Escape shows everything again.");
            },
          ],
        },
      };
      const [x, y] = [this.range("x"), this.range("y")];
      const u = new uPlot(options, [null, [x, y]], canvas);
      u.only = only;
      this.place(u);
      u.over.addEventListener("pointermove", (event) => {
        const box = u.over.getBoundingClientRect();
        const found = this.near(u, event.clientX - box.left, event.clientY - box.top);
        if (found) this.tell(u, found);
        else tip.hidden = true;
      });
      u.over.addEventListener("pointerleave", () => (tip.hidden = true));
      u.over.addEventListener("click", (event) => {
        const box = u.over.getBoundingClientRect();
        const found = this.near(u, event.clientX - box.left, event.clientY - box.top);
        if (found) this.keep(found);
      });
      return u;
    }

    spot(u, point) {
      return [u.valToPos(point.x, "x") + this.shift(u, point.series.label), u.valToPos(point.y, "y")];
    }

    near(u, left, top) {
      let best = null;
      let least = 28;
      for (const point of this.points) {
        if (u.only !== null && point.series.label !== u.only) continue;
        const [x, y] = this.spot(u, point);
        if (x < -4 || y < -4 || x > u.over.clientWidth + 4 || y > u.over.clientHeight + 4) continue;
        let distance = Math.hypot(x - left, y - top);
        if (point.series.kind === "spans") {
          const [a, b] = [point.series.low, point.series.high].map((ends) => u.valToPos(ends[point.i], "x"));
          if (left >= a && left <= b && Math.abs(y - top) < 10) distance = 0;
        }
        if (distance < least) [best, least] = [point, distance];
      }
      return best;
    }

    words({ series, i }) {
      const { x, y } = this.chart;
      const unit = (axis) => (axis.unit ? ` ${axis.unit}` : "");
      const name = new Map(x.ticks ?? []).get(series.x[i]);
      const lines = [[series.label, series.part].filter(Boolean).join(" ")];
      if (series.kind === "spans") {
        if (!y.ticks) lines.push(`request ${series.y[i]}`);
        lines.push(`${series.is_length ? text(series.x[i]) : `${text(series.low[i])} to ${text(series.high[i])}`}${unit(x)}`);
      } else {
        if (name !== undefined) lines.push(`${x.label}: ${name}`);
        else lines.push(`${text(series.x[i])}${unit(x)}`);
        if (!y.ticks || y.unit) lines.push(`${text(series.y[i])}${unit(y)}`);
      }
      if (series.kind !== "spans" && finite(series.low?.[i])) lines.push(`95 % interval ${text(series.low[i])} to ${text(series.high[i])}`);
      if (series.n) lines.push(`n = ${series.n[i].toLocaleString("en-US")}`);
      if (series.notes?.[i] && name === undefined) lines.push(series.notes[i]);
      for (const [fact, values] of series.facts ?? []) lines.push(`${fact}: ${text(values[values.length > 1 ? i : 0])}`);
      if (series.invalid?.includes(i)) lines.push("invalid");
      return lines;
    }

    /* Words of a point below the chart, where they can be copied. */
    keep(point) {
      if (!point.series.facts) return;
      this.kept ??= this.figure.querySelector(".how").appendChild(Object.assign(document.createElement("span"), { className: "kept-point" }));
      this.kept.textContent = this.words(point).join(" · ");
      say(this.kept.textContent);
    }

    /* `stays`: it moves with its point when the page is scrolled, also by the keyboard's focus. */
    tell(u, point, stays = false) {
      const [x, y] = this.spot(u, point);
      const box = u.over.getBoundingClientRect();
      tip.replaceChildren(...this.words(point).map((line) => Object.assign(document.createElement("span"), { textContent: line })));
      tip.hidden = false;
      const left = Math.min(box.left + x + 12, innerWidth - tip.offsetWidth - 8);
      const above = box.top + y - tip.offsetHeight - 10;
      tip.style.transform = `translate(${Math.max(8, left)}px, ${above > 0 ? above : box.top + y + 12}px)`;
      follow = stays ? () => this.tell(u, point, stays) : () => (tip.hidden = true);
    }

    /* The numbers, a row a point; without y where its ticks are the engines. */
    csv() {
      const { x, y, series } = this.chart;
      const only = y.down && y.ticks ? () => [] : (value) => [value];
      const numbers = new Map(x.unit ? [] : x.ticks?.map(([place, name]) => [place, name.replaceAll(",", "")]));
      const rows = series.flatMap((found) => {
        const [low, high] = found.is_length ? [] : [found.low, found.high];
        return found.x.map((at, i) => [
          found.label, found.part ?? "", numbers.get(at) ?? at, ...only(found.y[i]),
          low?.[i] ?? "", high?.[i] ?? "", found.n?.[i] ?? "", !found.invalid?.includes(i), found.notes?.[i] ?? "",
        ]);
      });
      const quoted = (value) => (/[",\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : value);
      const head = ["engine", "part", x.label, ...only(y.label), "low", "high", "n", "valid", "note"];
      return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\n");
    }

    /* The points in sight: of a zoom those within it. */
    get visible() {
      const within = (value, [low, high]) => low <= value && value <= high;
      const [x, y] = [this.range("x"), this.range("y")];
      return this.zoom ? this.points.filter((point) => within(point.x, x) && within(point.y, y)) : this.points;
    }

    /* Arrow keys go from point to point; Escape resets. */
    key(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") {
        tip.hidden = true;
        if (this.zoom) this.zoomTo(null);
      } else if (event.key === "Enter" && this.at >= 0) this.keep(this.visible[this.at]);
      else if (step) {
        const points = this.visible;
        if (!points.length) return;
        const from = this.at < 0 && step < 0 ? 0 : this.at; // the last one is before the first
        this.at = (from + step + points.length) % points.length;
        const point = points[this.at];
        const u = this.panels.find((panel) => panel.only === null || panel.only === point.series.label);
        this.tell(u, point, true);
        say(this.words(point).join(", "));
        event.preventDefault();
      }
    }

    draw(u, only) {
      const { ctx } = u;
      const ratio = devicePixelRatio;
      const { left, top, width, height } = u.bbox;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left - 6 * ratio, top - 6 * ratio, width + 12 * ratio, height + 8 * ratio);
      ctx.clip();
      ctx.font = `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
      const place = (value, which) => u.valToPos(value, which, true);
      for (const limit of this.chart.limits) {
        const at = place(limit.value, limit.axis);
        ctx.strokeStyle = ctx.fillStyle = paint("--muted");
        ctx.lineWidth = ratio;
        ctx.setLineDash([2 * ratio, 3 * ratio]);
        ctx.beginPath();
        if (limit.axis === "x") ctx.moveTo(at, top), ctx.lineTo(at, top + height);
        else ctx.moveTo(left, at), ctx.lineTo(left + width, at);
        ctx.stroke();
        ctx.setLineDash([]);
      }
      const order = (series) => (series.label === only ? 2 : 0) + (series.kind === "band" ? 0 : 1);
      for (const series of [...this.series].sort((a, b) => order(a) - order(b))) {
        const pale = only !== null && series.label !== only;
        const look = this.looks[series.label];
        const color = pale ? paint("--rule") : colorOf(series.color ?? look.color);
        const hatch = series.color ? HATCHES[this.parts.indexOf(series.part) % HATCHES.length] : [];
        const shift = this.shift(u, series.label) * ratio;
        drawSeries(ctx, series, { ...look, color, hatch, pale, ratio, shapes: page.shapes, card: paint("--card"), ink: paint("--ink") },
          (x) => place(x, "x") + shift, (y) => place(y, "y"));
      }
      /* Text on a line is legible with paper around it. */
      ctx.lineWidth = 4 * ratio;
      ctx.strokeStyle = paint("--card");
      ctx.fillStyle = paint("--muted");
      const write = (words, where) => {
        ctx.strokeText(words, ...where);
        ctx.fillText(words, ...where);
      };
      ctx.textAlign = "left";
      const named = [];
      for (const { names, x, y } of this.series.filter((series) => series.names)) {
        names.forEach((name, i) => {
          const where = [place(x[i], "x") + 7 * ratio, place(y[i], "y") - 7 * ratio];
          const isNear = ([other, [left, top]]) => other === name && Math.hypot(left - where[0], top - where[1]) < 30 * ratio;
          if (!named.some(isNear)) write(name, where);
          named.push([name, where]);
        });
      }
      for (const limit of this.chart.limits) {
        const at = place(limit.value, limit.axis);
        const where = limit.axis === "x" ? [at + 4 * ratio, top + height - 6 * ratio]
          : [this.free(u, at, ctx.measureText(limit.text).width, left, left + width, ratio), at - 4 * ratio];
        write(limit.text, where);
      }
      ctx.restore();
    }
  }

  /* Lines over a bar, at angles of its part, which tell parts apart without colours. */
  const HATCHES = [[], [45], [135], [0], [90], [45, 135], [0, 90], [60, 120]];
  const hatched = (ctx, { hatch, card, ratio }, [left, top, width, height]) => {
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.translate(left, top);
    ctx.strokeStyle = card;
    ctx.lineWidth = ratio;
    ctx.globalAlpha = 0.55;
    const reach = width + height;
    for (const angle of hatch) {
      ctx.save();
      ctx.rotate((angle * Math.PI) / 180);
      ctx.beginPath();
      for (let y = -reach; y < reach; y += 7 * ratio) ctx.moveTo(-reach, y), ctx.lineTo(reach, y);
      ctx.stroke();
      ctx.restore();
    }
    ctx.restore();
  };

  const drawSeries = (ctx, series, style, px, py) => {
    const { ratio, color } = style;
    const xs = series.x.map(px);
    const join = (points) => {
      ctx.beginPath();
      points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    };
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.globalAlpha = series.opacity ?? 1;
    if (series.kind === "spans") {
      const thick = Math.max(Math.abs(py(series.width ?? 0.6) - py(0)), ratio);
      series.y.forEach((y, i) => {
        if (!finite(series.low[i]) || !finite(series.high[i])) return;
        const start = px(series.low[i]);
        const bar = [start, py(y) - thick / 2, Math.max(px(series.high[i]) - start, 0.5 * ratio), thick];
        ctx.fillStyle = color;
        ctx.fillRect(...bar);
        if (style.hatch.length) hatched(ctx, style, bar);
        const length = series.is_length && series.x[i].toLocaleString("en-US", { maximumSignificantDigits: 3 });
        if (!length || ctx.measureText(length).width + 8 * ratio > bar[2] || thick < 12 * ratio) return;
        ctx.textAlign = "center";
        ctx.textBaseline = "middle";
        ctx.strokeStyle = style.card;
        ctx.lineWidth = 4 * ratio;
        ctx.fillStyle = style.ink;
        const middle = [length, start + bar[2] / 2, py(y)];
        ctx.strokeText(...middle);
        ctx.fillText(...middle);
      });
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
    } else if (series.kind === "band") {
      if (xs.length === 1) {
        ctx.globalAlpha = 0.3;
        ctx.fillRect(xs[0] - 5 * ratio, py(series.high[0]), 10 * ratio, py(series.low[0]) - py(series.high[0]));
      } else {
        ctx.globalAlpha = style.pale ? 0.3 : 0.16;
        join([...xs.map((x, i) => [x, py(series.low[i])]), ...xs.map((x, i) => [x, py(series.high[i])]).reverse()]);
        ctx.fill();
      }
    } else {
      const points = xs.map((x, i) => [x, py(series.y[i])]);
      if (series.kind === "line") {
        ctx.lineWidth = 1.8 * ratio;
        ctx.setLineDash(style.dash.map((length) => length * ratio));
        join(points);
        ctx.stroke();
        ctx.setLineDash([]);
      }
      if (series.low && series.whiskers !== false && !style.pale) {
        ctx.lineWidth = 1.2 * ratio;
        points.forEach(([x], i) => {
          if (!finite(series.low[i])) return;
          join([[x, py(series.low[i])], [x, py(series.high[i])]]);
          ctx.stroke();
        });
      }
      if (series.markers !== false && !(style.pale && points.length > 20)) {
        const size = (points.length > 100 ? 1.9 : series.whiskers === false && series.hollow ? 6 : 4.2) * ratio;
        ctx.lineWidth = 1.4 * ratio;
        if (series.hollow) ctx.fillStyle = style.card;
        for (const [x, y] of points) {
          const corners = style.shapes[style.marker] ?? [];
          if (corners.length) join(corners.map(([a, b]) => [x + a * size, y + b * size])), ctx.closePath();
          else ctx.beginPath(), ctx.arc(x, y, size, 0, 2 * Math.PI);
          ctx.fill();
          ctx.stroke();
        }
      }
      ctx.strokeStyle = style.ink;
      ctx.lineWidth = 1.6 * ratio;
      const uncrossed = style.pale || series.markers === false || points.length > page.crossed;
      for (const i of uncrossed ? [] : series.invalid ?? []) {
        const [x, y] = points[i];
        join([[x - 5 * ratio, y - 5 * ratio], [x + 5 * ratio, y + 5 * ratio]]);
        ctx.stroke();
        join([[x + 5 * ratio, y - 5 * ratio], [x - 5 * ratio, y + 5 * ratio]]);
        ctx.stroke();
      }
    }
    ctx.globalAlpha = 1;
  };

  let follow = () => {}; // what happens to the tip when the page is scrolled
  addEventListener("scroll", () => tip.hidden || follow(), { passive: true });

  /* ---- Drawn when they come into view, and again when their width changes. ---- */
  const cards = new Map();
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const card = cards.get(target);
      if (card?.panels.length && target.clientWidth && !isPrinting()) card.resize();
    }
  });
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const card = cards.get(target);
        if (!isIntersecting || card.panels.length) continue;
        card.build();
        sized.observe(target);
      }
    },
    { rootMargin: "300px" },
  );
  for (const host of all(".plot")) {
    const figure = host.closest("figure");
    const chapter = chapters.get(host.closest("article, header.several"));
    const card = new Card(figure, host, chapter);
    chapter.cards.push(card);
    cards.set(host, card);
    host.addEventListener("keydown", (event) => card.key(event));
    host.addEventListener("blur", () => (tip.hidden = true));
    seen.observe(host);
  }
  dark.addEventListener("change", () => { for (const card of cards.values()) card.refresh(); });

  /* ---- The picture of a card as it is shown: title, engines, panels. ---- */
  const picture = (figure) => {
    const card = cards.get(figure.querySelector(".plot"));
    if (!card.panels.length) card.build();
    const ratio = devicePixelRatio;
    const line = 20 * ratio;
    const boxes = card.panels.map((panel) => [panel, panel.root.parentElement.parentElement.getBoundingClientRect()]);
    const origin = card.host.getBoundingClientRect();
    const canvas = Object.assign(document.createElement("canvas"), {
      width: origin.width * ratio + 2 * line, height: origin.height * ratio + 3.4 * line,
    });
    const ctx = canvas.getContext("2d");
    const family = getComputedStyle(document.body).fontFamily;
    ctx.fillStyle = paint("--card");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.fillStyle = paint("--ink");
    ctx.font = `600 ${14 * ratio}px ${family}`;
    ctx.fillText(figure.querySelector("figcaption .name").textContent, line / 2, line);
    ctx.font = `${12 * ratio}px ${family}`;
    let x = line / 2;
    for (const label of card.labels) {
      ctx.fillStyle = colorOf(card.looks[label].color);
      ctx.fillText(card.looks[label].glyph, x, 2 * line);
      x += 16 * ratio;
      ctx.fillStyle = paint("--ink");
      ctx.fillText(label, x, 2 * line);
      x += ctx.measureText(label).width + 16 * ratio;
    }
    for (const [panel, box] of boxes) {
      const at = panel.root.getBoundingClientRect();
      const [left, top] = [(at.x - origin.x) * ratio + line / 2, (at.y - origin.y) * ratio + 2.6 * line];
      if (panel.only !== null) ctx.fillText(panel.only, left + 8 * ratio, (box.y - origin.y) * ratio + 3.2 * line);
      ctx.drawImage(panel.ctx.canvas, left, top);
    }
    return canvas;
  };

  /* Paper has light colours, all charts, and each at the same width. */
  const print = (on) => {
    const cardsWithSize = [...cards.values()].filter((card) => card.host.clientWidth);
    root.classList.toggle("printing", on);
    for (const card of cardsWithSize) card.resize();
  };

  const update = (chapter) => { for (const card of chapter.cards) card.refresh(); };
  return { chapters, update, picture, cards, print };
};
