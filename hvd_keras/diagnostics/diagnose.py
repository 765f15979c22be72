"""``hvd-diagnose FOLDER``: where the ranks of a job parted, from their flight recorders."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvd_keras.diagnostics import FORMAT

__all__ = ["diagnose", "main"]

_LISTED = 8


class Key(NamedTuple):
    """What the ranks match calls by."""

    process_set: int
    name: str
    occurrence: int


class Diagnosis(NamedTuple):
    """What the flight recorders say.

    Attributes:
        ranks: one line for each rank: what it did last.
        partings: the collectives that some members have called and others not, oldest first.
        verdict: one sentence.
    """

    ranks: list[str]
    partings: list[str]
    verdict: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``hvd-diagnose`` and returns its exit code.

    Args:
        arguments: the words after ``hvd-diagnose``; None for this process's.
    """
    parser = argparse.ArgumentParser(
        prog="hvd-diagnose",
        description="Says where the ranks of a job parted, who is missing, and how it ended.",
    )
    parser.add_argument("folder", help="the folder with the ranks' files, rank-0.json, rank-1.json")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parsed = parser.parse_args(arguments)
    try:
        diagnosis = diagnose(load(Path(parsed.folder)))
    except (OSError, ValueError) as error:
        print(f"hvd-diagnose: error: {error}", file=sys.stderr)
        return 2
    if parsed.json:
        print(json.dumps(diagnosis._asdict(), indent=1))
        return 0
    for line in [*diagnosis.ranks, "", *diagnosis.partings, "", f"Verdict: {diagnosis.verdict}"]:
        print(line)
    return 0


def load(folder: Path) -> list[dict[str, Any]]:
    """Reads the files of all ranks, in rank order.

    Raises:
        OSError: the folder cannot be read.
        ValueError: there is no file, or one of another kind.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    dumps = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            dump = json.loads(path.read_text())
            if dump["format"] != FORMAT:
                raise ValueError(f"its format is {dump['format']!r}; expected {FORMAT!r}")
            _check(dump)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a flight recorder: {error}") from error
        dumps.append(dump)
    if not dumps:
        raise ValueError(f"there is no rank-R.json in {folder}")
    return sorted(dumps, key=lambda dump: dump["rank"])


def _check(dump: dict[str, Any]) -> None:
    for field in ("rank", "size", "pid", "written_ns"):
        if not isinstance(dump[field], int):
            raise ValueError(f"{field} is {dump[field]!r}; expected a whole number")
    if not isinstance(dump["process_sets"], dict) or not isinstance(dump["records"], list):
        raise ValueError("process_sets or records have another form")
    for record in dump["records"]:
        for field in ("process_set", "occurrence", "posted_ns", "ended_ns", "fingerprint"):
            if not isinstance(record[field], int):
                raise ValueError(f"{field} is {record[field]!r}; expected a whole number")
        for field in ("kind", "name", "dtype", "code"):
            if not isinstance(record[field], str):
                raise ValueError(f"{field} is {record[field]!r}; expected text")


def diagnose(dumps: list[dict[str, Any]]) -> Diagnosis:
    """Compares what the ranks did.

    Args:
        dumps: the contents of the files of all ranks that have written one.
    """
    size = max([dump["size"] for dump in dumps])
    silent = sorted(set(range(size)) - {dump["rank"] for dump in dumps})
    lines = [_rank_line(dump) for dump in dumps]
    if silent:
        lines.append(f"There is no file of {_ranks(silent)}.")
    differing = _differing(dumps)
    open_calls = _open_calls(dumps, size)
    partings = [f"{_label(calls)}: {_who(calls, missing)}" for calls, missing in open_calls]
    hidden = len(partings) - _LISTED
    partings = partings[:_LISTED] + ([f"and {hidden} more"] if hidden > 0 else [])
    return Diagnosis(lines, partings, _verdict(dumps, differing, open_calls, silent))


def _calls(dumps: list[dict[str, Any]]) -> dict[Key, dict[int, dict[str, Any]]]:
    """All calls, by what is matched and then by rank."""
    calls: dict[Key, dict[int, dict[str, Any]]] = defaultdict(dict)
    for dump in dumps:
        for record in dump["records"]:
            key = Key(record["process_set"], record["name"], record["occurrence"])
            calls[key][dump["rank"]] = record
    return calls


def _differing(dumps: list[dict[str, Any]]) -> list[dict[int, dict[str, Any]]]:
    """The calls of which the ranks had different ideas, oldest first."""
    found = [
        by_rank
        for by_rank in _calls(dumps).values()
        if len({record["fingerprint"] for record in by_rank.values()}) > 1
        and any(record["code"] for record in by_rank.values())
    ]
    return sorted(found, key=_first_posted)


def _open_calls(
    dumps: list[dict[str, Any]], size: int
) -> list[tuple[dict[int, dict[str, Any]], list[int]]]:
    """The calls that have not ended, or in an abort, with the ranks that did not make them."""
    members = {0: list(range(size))}
    for dump in dumps:
        members.update({int(number): ranks for number, ranks in dump["process_sets"].items()})
    found = []
    for key, by_rank in _calls(dumps).items():
        is_open = any(r["ended_ns"] == 0 or r["code"] == "Aborted" for r in by_rank.values())
        if is_open:
            missing = sorted(set(members.get(key.process_set, [])) - set(by_rank))
            found.append((by_rank, missing))
    return sorted(found, key=lambda item: _first_posted(item[0]))


def _first_posted(by_rank: dict[int, dict[str, Any]]) -> int:
    return min(record["posted_ns"] for record in by_rank.values())


def _rank_line(dump: dict[str, Any]) -> str:
    line = f"rank {dump['rank']} (host {dump['host']}, pid {dump['pid']})"
    if dump["written_by_rank"] != dump["rank"]:
        line += f", written by rank {dump['written_by_rank']} after its death"
    if not dump["records"]:
        return f"{line}: no collective"
    last = dump["records"][-1]
    ago = (dump["written_ns"] - last["posted_ns"]) / 1e9
    state = "has not ended" if last["ended_ns"] == 0 else last["code"] or "done"
    return f"{line}: last called {_name(last)} {ago:.1f} s before it was written: {state}"


def _name(record: dict[str, Any]) -> str:
    tensors = f" of {record['tensors']} tensors" if record["tensors"] > 1 else ""
    call = f", call {record['occurrence'] + 1} of that name" if record["occurrence"] else ""
    return f"{record['kind']} '{record['name']}'{tensors}{call}"


def _label(by_rank: dict[int, dict[str, Any]]) -> str:
    return _name(next(iter(by_rank.values())))


def _who(by_rank: dict[int, dict[str, Any]], missing: list[int]) -> str:
    text = f"called by {_ranks(sorted(by_rank))}"
    return f"{text}, not by {_ranks(missing)}" if missing else f"{text}, not finished"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_LISTED]))
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def _verdict(
    dumps: list[dict[str, Any]],
    differing: list[dict[int, dict[str, Any]]],
    open_calls: list[tuple[dict[int, dict[str, Any]], list[int]]],
    silent: list[int],
) -> str:
    abort = next((dump["abort"] for dump in dumps if dump["abort"]), "")
    if abort:
        first, *_, last = [*abort.splitlines(), ""] if "\n" not in abort else abort.splitlines()
        # Of an exception the last line says what it was.
        return f"{first} {last.strip()}" if first.endswith("an exception:") else first
    if differing:
        by_rank = differing[0]
        ideas = "; ".join(
            f"rank {rank}: {record['kind']} of {record['dtype']} {record['shape']}"
            for rank, record in sorted(by_rank.items())
        )
        return f"the ranks disagree about '{next(iter(by_rank.values()))['name']}': {ideas}."
    waiting = [(calls, missing) for calls, missing in open_calls if missing]
    if waiting:
        by_rank, missing = waiting[0]
        verdict = f"{_ranks(sorted(by_rank))} wait in {_label(by_rank)} for {_ranks(missing)}"
        own = [calls for calls, _ in waiting[1:] if set(missing) & set(calls)]
        if own:
            return f"{verdict}, which wait in {_label(own[0])}: they have gone different ways."
        return f"{verdict}, which did not call it."
    if open_calls:
        return f"all ranks have called {_label(open_calls[0][0])}, and it has not finished."
    if silent:
        return f"{_ranks(silent)} wrote no file; the others had nothing to wait for."
    return "no collective is pending; the ranks agree."
