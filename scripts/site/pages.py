"""Pages of the site that lie outside docs/, links between all of them, and diagrams as pictures.

A link in a document is relative to the document, as on GitHub; here it becomes a link to the page made of
that file. A fence of mermaid becomes the picture that `make diagrams` drew of it; readers load no script.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site.diagrams import FENCE, picture, title

ROOT = Path(__file__).parents[2]
#: Pages by the documents that they are made of.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/README.md": "benchmarks.md",
}
#: What a page would load from another host.
_REMOTE = re.compile(r"""<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)=["'](?:https?:)?//""")
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, and the published reports as they are."""
    for document, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    for report in sorted((ROOT / "reports").glob("*.html")):
        files.append(File.generated(config, f"reports/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages, and put pictures in the place of diagrams."""
    uri = page.file.src_uri
    document = next((source for source, target in PAGES.items() if target == uri), f"docs/{uri}")

    def to_page(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[2]):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), match[2]))
        there = PAGES.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(there, posixpath.dirname(uri) or ".") + match[3]

    def to_picture(match: re.Match[str]) -> str:
        drawn = picture(match[1])
        if not drawn.is_file():
            raise PluginError(
                f"{document}: no picture of the diagram {title(match[1])!r}; run `make diagrams`"
            )
        where = posixpath.relpath(f"images/{drawn.name}", posixpath.dirname(uri) or ".")
        return f"![{title(match[1])}]({where})\n"

    return FENCE.sub(to_picture, _LINK.sub(to_page, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Raises PluginError where a page would load something from another host."""
    if remote := _REMOTE.search(output):
        raise PluginError(f"{page.file.src_uri} loads {remote[0]}…; put a copy into docs/")
    return output
