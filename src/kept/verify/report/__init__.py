"""What a run has shown: as one page to read, as JSON and as JUnit's XML for machines, as Markdown for the docs."""

from __future__ import annotations

import os

from kept.verify.report.document import Report
from kept.verify.report.junit import as_junit
from kept.verify.report.page import as_page
from kept.verify.report.proof import as_proof
from kept.verify.run_directory import RunDirectory

PAGE, JSON, JUNIT, PROOF = "report.html", "report.json", "report.xml", "report.md"


def write_reports(run: RunDirectory) -> Report:
    """Judge a stored run, and write its reports beside it."""
    report = Report(run.plan, run.outcomes())
    texts = {PAGE: as_page(report), JSON: report.as_json(), JUNIT: as_junit(report), PROOF: as_proof(report)}
    for name, text in texts.items():
        part = run.path / f"{name}.{os.getpid()}.part"  # somebody may be at work on the same run beside us
        part.write_text(text, encoding="utf-8")
        part.replace(run.path / name)
    return report


__all__ = ["JSON", "JUNIT", "PAGE", "PROOF", "Report", "write_reports"]
