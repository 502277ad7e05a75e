from pathlib import Path

from harness.metrics.glossary import GLOSSARY
from harness.schema.results import LATENCY_METRICS

REFERENCE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_latency_metric_is_explained():
    assert set(LATENCY_METRICS) <= set(GLOSSARY)


def test_the_reference_and_the_report_say_the_same():
    for term in GLOSSARY.values():
        assert f"`{term.key}`" in REFERENCE
        assert term.formula in REFERENCE
        assert term.meaning in REFERENCE, term.key
