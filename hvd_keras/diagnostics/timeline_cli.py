"""``hvd-timeline``: what to make of the timelines that a job has written.

Like the launcher it does not import TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_keras.diagnostics.timeline_analysis import analyse
from hvd_keras.diagnostics.timeline_files import RankTimeline, TimelineError, read_timelines
from hvd_keras.diagnostics.timeline_report import make_page
from hvd_keras.diagnostics.timeline_warnings import warnings_of

__all__ = ["main"]

_DESCRIPTION = """\
Reads the timelines of a job, written with HVD_TIMELINE=FILE.json, hvdrun --timeline-filename or
hvd.start_timeline().

  hvd-timeline report timeline.json -o report.html    a page that says where the time goes
  hvd-timeline merge timeline.json -o all.json        all ranks in one file, for ui.perfetto.dev

What other ranks of the same job have written beside the files is read, too. Folders stand for the
files in them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 for files that cannot be used, 2 for wrong options."""
    parsed = _parser().parse_args(arguments)
    try:
        timelines = read_timelines(parsed.files, beside=not parsed.only)
        if parsed.command == "report":
            analysis = analyse(timelines)
            page = make_page(analysis, timelines)
            _replace(parsed.output, [page])
            for warning in warnings_of(analysis, timelines):
                print(f"- {warning}")
        else:
            _replace(parsed.output, _merged(timelines))
    except TimelineError as error:
        print(f"hvd-timeline: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        reason = error.strerror or error
        print(f"hvd-timeline: {parsed.output} cannot be written: {reason}", file=sys.stderr)
        return 1
    count = sum(len(timeline.paths) for timeline in timelines)
    print(f"{parsed.output}: {len(timelines)} of {timelines[0].size} ranks, {count} files")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hvd-timeline",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="report | merge")
    for name, output, help_text in (
        ("report", "report.html", "make a page of it"),
        ("merge", "timeline-all.json", "put all ranks into one file of trace events"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("files", nargs="+", metavar="FILE", help="a timeline, or a folder")
        command.add_argument(
            "-o", "--output", default=output, metavar="FILE", help=f"default: {output}"
        )
        command.add_argument(
            "--only", action="store_true", help="these files, and none that lie beside them"
        )
    return parser


def _merged(timelines: Sequence[RankTimeline]) -> Iterable[str]:
    separator = "[\n"
    for timeline in timelines:
        for event in timeline.events:
            yield separator + json.dumps(event, separators=(",", ":"))
            separator = ",\n"
    yield "\n]\n"


def _replace(output: str, texts: Iterable[str]) -> None:
    """Writes the file beside its place, and renames it: nobody finds half of it."""
    scratch = Path(f"{output}.{os.getpid()}.tmp")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(texts)
        scratch.replace(output)
    finally:
        scratch.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
