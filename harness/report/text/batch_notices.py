"""What was noticed of offline batches, for the reader of a run."""

from __future__ import annotations

from harness.report.text.cell_notices import OF_THE_MACHINE, TITLES, TOPICS, of_repeats
from harness.report.text.notice import Notice, sentence
from harness.report.text.numbers import plural
from harness.runs.reader import OfflineRun
from harness.schema.repeat_number import repeat_text


def of_short_batches(run: OfflineRun) -> list[Notice]:
    """The shortest measurement of a batch, where they are too short."""
    results = run.results.results
    found = [
        (result.total_s * result.batches, result, notice.text)
        for result in results
        for notice in result.notices
        if notice.kind == "short"
    ]
    if not found:
        return []
    _, result, text = min(found, key=lambda entry: entry[0])
    title = (
        f"{len(found)} of {plural(len(results), 'measurement')} {'is' if len(found) == 1 else 'are'} short."
    )
    detail = sentence(f"{result.label}, {repeat_text(result.repeat)}: {text}")
    return [Notice("load", title, detail, "length")]


def of_the_machine(run: OfflineRun) -> list[Notice]:
    """What else used the machine, or slowed it down, while an engine was measured."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in run.results.results:
        for notice in result.notices:
            if notice.kind in OF_THE_MACHINE:
                texts = found.setdefault((notice.kind, result.label), [])
                texts.append(f"{repeat_text(result.repeat)}: {notice.text}")
    return [
        Notice(
            "load",
            TITLES[kind].format(label=label),
            " ".join(sentence(said[:1].upper() + said[1:]) for said in of_repeats(texts)),
            TOPICS[kind],
        )
        for (kind, label), texts in sorted(found.items())
    ]
