"""The parts of the site that this project adds; `make site` builds it with strict links."""

from __future__ import annotations

import re
from functools import cache

import pytest
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.cli.commands import COMMANDS
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS
from harness.schema.online_settings import OnlineSettings
from scripts.site import diagrams, pages


@cache
def config() -> MkDocsConfig:
    return load_config(str(diagrams.ROOT / "mkdocs.yml"))


def page(uri: str) -> Page:
    return Page(None, File(uri, None, "site", use_directory_urls=False), config())


def shown(uri: str, markdown: str) -> str:
    return pages.on_page_markdown(markdown, page(uri), config(), Files([]))


def test_every_diagram_is_drawn_and_no_picture_is_left_over():
    wanted = {diagrams.picture(source) for source in diagrams.diagrams()}
    assert wanted == set(diagrams.IMAGES.glob("diagram-*.svg")), "run `make diagrams`"
    assert len(wanted) > 1


def test_a_diagram_becomes_its_picture():
    source = diagrams.diagrams()[0]
    markdown = f"Before.\n\n```mermaid\n{source}```\n\nAfter.\n"
    name = diagrams.picture(source).name
    assert shown("architecture.md", markdown) == (
        f"Before.\n\n![{diagrams.title(source)}](images/{name})\n\nAfter.\n"
    )
    assert f"(../images/{name})" in shown("notes/h200.md", markdown)
    with pytest.raises(PluginError, match="make diagrams"):
        shown("architecture.md", markdown.replace("flowchart", "flowchart "))


@pytest.mark.parametrize(
    ("uri", "link", "there"),
    [
        ("index.md", "docs/faq.md", "faq.md"),
        ("index.md", "docs/engines.md#variants", "engines.md#variants"),
        ("index.md", "CONTRIBUTING.md#set-up", "contributing.md#set-up"),
        ("index.md", "reports/h100-gpt2.html", "reports/h100-gpt2.html"),
        ("index.md", "#results", "#results"),
        ("architecture.md", "../CONTRIBUTING.md", "contributing.md"),
        ("notes/cpu-peers.md", "../engines.md#equal-terms", "../engines.md#equal-terms"),
        ("benchmarks.md", "../docs/notes/soak.md", "notes/soak.md"),
        ("faq.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_of_the_repository_lead_to_pages(uri, link, there):
    assert shown(uri, f"[text]({link})") == f"[text]({there})"


def test_a_page_that_loads_from_another_host_is_an_error():
    assert pages.on_post_page('<a href="https://example.org">', page("faq.md"), config())
    with pytest.raises(PluginError, match="loads"):
        pages.on_post_page('<script src="https://example.org/x.js">', page("faq.md"), config())


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    files = config().plugins.on_files(Files([]), config=config())
    return {file.src_uri: file.content_string for file in files if file.src_uri.startswith("reference/")}


def test_every_command_and_every_setting_is_in_the_reference(generated):
    text = generated["reference/bench.md"]
    assert all(f"## bench {name}" in text for name in COMMANDS)
    online, offline = (
        text.partition(f"## bench {name}\n")[2].partition("\n## ")[0] for name in ("online", "offline")
    )
    shown_online = OnlineSettings.model_fields.keys() - {"num_prompts"}
    assert all(f"--{name.replace('_', '-')}`" in online for name in shown_online)
    assert "--num-prompts`" in offline
    assert "## roseinfer serve" in generated["reference/roseinfer.md"]


def test_every_field_and_every_column_is_in_the_reference(generated):
    text = generated["reference/records.md"]
    assert all(f'"{name}"' in text for name in (*STORED_REQUESTS.names, *STORED_CHUNKS.names))
    summary = text.partition("### OnlineSummary\n")[2].partition("\n### ")[0]
    assert re.search(r"\| `peak_in_flight` \| integer or null, optional \| the most requests", summary)
    names = re.findall(r"\]\(#([a-z]+)\)", text)
    assert set(names) <= {head.lower() for head in re.findall(r"^### (.*)$", text, flags=re.M)} and names
