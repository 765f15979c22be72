"""Reports: the same tables for a terminal and for Markdown, and everything as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of text by column; a row may lack a column.

    Attributes:
        notes: lines below it, for example what is absent.
    """

    title: str
    rows: Sequence[Mapping[str, str]]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def columns(self) -> list[str]:
        """In the order in which they first appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def text(self) -> str:
        """For a terminal: columns of equal width."""
        if not self.rows:
            return "\n".join([self.title, *self.notes])
        columns = self.columns
        lines = [columns] + [[row.get(name, "-") for name in columns] for row in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *body, *self.notes])

    def markdown(self) -> str:
        """The same for Markdown."""
        notes = [f"{note}  " for note in self.notes]
        if not self.rows:
            return "\n".join([f"## {self.title}", "", *notes])
        columns = self.columns
        lines = [columns, ["---"] * len(columns)]
        lines += [[row.get(name, "-") for name in columns] for row in self.rows]
        body = ["| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines]
        return "\n".join([f"## {self.title}", "", *body, "", *notes])


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def absence_notes(absent: Mapping[str, str]) -> list[str]:
    """A line for each program that could not be measured, with the first line of the reason."""
    return [f"absent: {name}: {reason.splitlines()[0]}" for name, reason in absent.items()]


def as_json(tables: Sequence[Table]) -> list[dict]:
    return [
        {
            "title": table.title,
            "rows": [dict(row) for row in table.rows],
            "notes": list(table.notes),
        }
        for table in tables
    ]
