"""From what each rank reports of a test to one verdict for all; plain data, no pytest.

A report is the dictionary that pytest's ``pytest_report_to_serializable`` makes. A rank's message
is ``{"rank", "outcome", "reports", "text"}``: outcome is passed, failed, skipped, xfailed or
xpassed, text says why in words.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Report = dict[str, Any]


def rank_names(ranks: Sequence[int]) -> str:
    """ "rank 1" or "ranks 0, 2"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, sorted(ranks)))}"


def judge(begin: Message, messages: Sequence[Message], missing: dict[int, str]) -> list[Report]:
    """The reports that every rank gets to show for one test.

    Args:
        begin: nodeid, location and keywords of the test.
        messages: what the ranks reported, in the order in which they came.
        missing: for each rank that did not report, what is known of it.
    """
    failed = [message for message in messages if message["outcome"] == "failed"]
    if failed:
        return _failure(failed, messages, missing)
    if missing:
        return synthetic(begin, "\n\n".join(missing[rank] for rank in sorted(missing)))
    if len({message["outcome"] for message in messages}) > 1:
        lines = [
            f"rank {message['rank']}: {message['outcome']} {message['text']}".rstrip()
            for message in sorted(messages, key=lambda message: message["rank"])
        ]
        return synthetic(begin, "\n".join(["the ranks differ in the outcome:", *lines]))
    return min(messages, key=lambda message: message["rank"])["reports"]


def _failure(
    failed: Sequence[Message], messages: Sequence[Message], missing: dict[int, str]
) -> list[Report]:
    first, *others = failed
    reports = copy.deepcopy(first["reports"])
    report = next(report for report in reports if report["outcome"] == "failed")
    label = rank_names([first["rank"]])
    well = [message["rank"] for message in messages if message not in failed]
    title = f"{label} failed first" if others else f"{label} failed"
    sections = [(f"{title}, {rank_names(well)} did not" if well else title, "")]
    sections += [(f"{rank_names([other['rank']])} failed, too", other["text"]) for other in others]
    sections += [(rank_names([rank]), text) for rank, text in sorted(missing.items())]
    _annotate(report, label, sections)
    return reports


def _annotate(report: Report, label: str, sections: Sequence[tuple[str, str]]) -> None:
    longrepr = report["longrepr"]
    if not isinstance(longrepr, dict):
        texts = [f"[{label}] {longrepr}", *(f"{title}:\n{text}" for title, text in sections)]
        report["longrepr"] = "\n\n".join(texts)
        return
    crashes = [longrepr.get("reprcrash")]
    if longrepr.get("chain"):
        crashes.append(longrepr["chain"][-1][1])
    for crash in crashes:
        if crash and not crash["message"].startswith(f"[{label}]"):
            crash["message"] = f"[{label}] {crash['message']}"
    longrepr["sections"] = [
        *longrepr.get("sections", ()),
        *([title, text, "-"] for title, text in sections),
    ]


def synthetic(begin: Message, text: str) -> list[Report]:
    """The reports of a test that failed in a way that no rank could report."""

    def report(when: str, outcome: str, longrepr: str | None) -> Report:
        return {
            "$report_type": "TestReport",
            "nodeid": begin["nodeid"],
            "location": begin["location"],
            "keywords": begin.get("keywords", {}),
            "outcome": outcome,
            "longrepr": longrepr,
            "when": when,
            "sections": [],
            "duration": 0.0,
            "start": 0.0,
            "stop": 0.0,
            "user_properties": [],
        }

    return [
        report("setup", "passed", None),
        report("call", "failed", text),
        report("teardown", "passed", None),
    ]
