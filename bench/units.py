"""Units used across the suite. GiB is 2^30 bytes, GB is 10^9 bytes; the two are never mixed."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9


def gib(n_bytes: float, digits: int = 2) -> str:
    """Render bytes as GiB, or MiB below a hundredth of a GiB so that tiny models stay readable."""
    if abs(n_bytes) < GIB / 100:
        return f"{n_bytes / MIB:.{digits}f} MiB"
    return f"{n_bytes / GIB:.{digits}f} GiB"


def count(n: float) -> str:
    """Render a count (parameters, tokens) with a decimal suffix: 11.53 M, 32.76 B."""
    for size, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(n) >= size:
            return f"{n / size:.2f}{suffix}"
    return f"{n:g}"


def seconds(s: float) -> str:
    """Render a duration for people: 8.3 s, 2 min 05 s, 1 h 03 min."""
    if s < 60:
        return f"{s:.1f} s"
    minutes, rest = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def gib_cell(n_bytes: float | None) -> str:
    """A number of GiB for a table whose header names the unit; a dash where there is none."""
    if n_bytes is None:
        return "—"
    value = n_bytes / GIB
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"
