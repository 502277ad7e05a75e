"""Templates, and what they may call."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.plain_text import one_line, visible
from harness.report.charts.looks import css_color
from harness.report.tables.table import Column
from harness.report.text.heading import model
from harness.report.wording import GLOSSARY, Sentence

_TERM = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(GLOSSARY, reverse=True)))
_TEMPLATES = Path(__file__).parent / "templates"
#: The script that draws with uPlot.
CHARTS = "charts.js"
_LIBRARY = Path(__file__).parent / "vendor" / "uplot"
#: A chart has two dots a pixel or more, as print and a saved picture need.
_SHARP = Markup("window.devicePixelRatio = Math.max(2, devicePixelRatio);")


@cache
def environment() -> Environment:
    """Text is escaped, hidden characters are written out, and an unknown name is an error."""
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    templates.filters["runs"] = _runs
    templates.filters["model_of"] = model
    templates.filters["unbroken"] = unbroken
    templates.filters["terms"] = with_terms
    templates.globals["glossary"] = GLOSSARY
    templates.filters["one_line"] = partial(one_line, limit=200)  # as the data of charts has labels
    return templates


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def unbroken(text: str) -> str:
    """A text whose numbers stay on one line with their units."""
    return text.replace(" %", "\u00a0%").replace(" ms", "\u00a0ms")


def with_terms(text: str | Sentence) -> Markup:
    """A text whose terms show what they mean when they are clicked, each where it comes first."""
    places = {name: place for place, name in enumerate(GLOSSARY)}
    written_terms = set[str]()

    def button(found: re.Match[str]) -> str:
        if (name := found[0]) in written_terms:
            return name
        written_terms.add(name)
        return f'<button type="button" class="term" popovertarget="term-{places[name]}">{name}</button>'

    parts = text.marked if isinstance(text, Sentence) else ((text, False),)
    written = []
    for part, stands_out in parts:
        escaped = str(escape(visible(unbroken(part))))
        written.append(f"<strong>{escaped}</strong>" if stands_out else _TERM.sub(button, escaped))
    return Markup("".join(written))


def text_of(name: str) -> Markup:
    """A file of the templates' folder as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def library(name: str) -> Markup:
    """A file of uPlot, with its licence where it is code."""
    text = (_LIBRARY / name).read_text(encoding="utf-8")
    licence = (_LIBRARY / "LICENSE").read_text(encoding="utf-8").strip()
    return Markup(f"/*\n{licence}\n*/\n{text}" if name.endswith(".js") else text)


@cache
def script(*names: str) -> tuple[Markup, str]:
    """The templates of those names as one script, with uPlot where it draws charts, and its SHA-256 in
    base64."""
    drawing = [_SHARP, library("uPlot.iife.min.js")] if CHARTS in names else []
    code = Markup("\n").join([*drawing, *map(text_of, names)])
    return code, base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def render_page(template: str, scripts: Sequence[str], **context: object) -> str:
    """Render a template with the styles of all pages and its scripts."""
    code, digest = script(*scripts)
    context |= {"css": text_of("report.css"), "color": css_color, "script": code, "script_hash": digest}
    if CHARTS in scripts:
        context["library_css"] = library("uPlot.min.css")
    return environment().get_template(template).render(context)


def _runs(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbouring columns that share a group."""
    return [(group, list(members)) for group, members in groupby(columns, key=lambda column: column.group)]
