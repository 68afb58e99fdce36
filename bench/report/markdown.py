"""Markdown pieces that hold against any text in a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tabulate import tabulate

_SPECIAL = re.compile(r"([\\`*|~\[\]])")


def inline(text: object) -> str:
    """Escape text for one line of Markdown, inside a table cell or outside: pipes, newlines, backticks, markup."""
    flat = " ".join(str(text).split())
    escaped = _SPECIAL.sub(r"\\\1", flat).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore is emphasis only at the edge of a word, and ids are full of the others.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A pipe table.

    Args:
        headers: column names; escaped here.
        rows: cells as text; escaped here.
        left: first columns that hold words and align left; the others hold numbers and align right.
    """
    cells = [[inline(cell) for cell in row] for row in rows]
    align = ["left" if i < left else "right" for i in range(len(headers))]
    return tabulate(
        cells, [inline(h) for h in headers], tablefmt="pipe", colalign=align if cells else None, disable_numparse=True
    )


def fence(text: str, language: str = "") -> str:
    """A code fence that no run of backticks in the text can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}{language}\n{text.rstrip()}\n{bar}"


def code(text: str) -> str:
    """A name in code type; pipes are escaped for tables, backticks replaced since a span cannot escape them."""
    return "`" + " ".join(text.split()).replace("`", "'") + "`"


def bullets(items: Iterable[str]) -> str:
    """A list of items that are already Markdown."""
    return "\n".join(f"- {item}" for item in items)


def footnotes(lines: Sequence[str]) -> str:
    """Reasons below a table, each on its own line."""
    return "  \n".join(inline(line) for line in lines)


def image(alt: str, path: str) -> str:
    """A picture by its path relative to the report."""
    return f"![{inline(alt)}]({path})"
