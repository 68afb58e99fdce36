"""Numbers as text, by unit; footnotes for what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.analysis.derive import Quantity
from bench.units import GIB, KIB, MIB, count, seconds

DASH = "—"
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def size(n_bytes: float) -> str:
    """Render bytes in the binary unit that keeps three digits: tiny models need MiB and KiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if abs(n_bytes) >= unit / 10:
            return f"{n_bytes / unit:.{2 if abs(n_bytes) >= unit else 3}f} {name}"
    return f"{n_bytes / KIB:.1f} KiB" if n_bytes else "0"


def number(value: float) -> str:
    """Render a number with at least three significant digits and no exponent."""
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    for limit, digits in ((100, 1), (10, 2), (1, 3), (0.1, 3), (0.01, 4)):
        if magnitude >= limit:
            return f"{value:.{digits}f}"
    return _small(value)


def share(value: float) -> str:
    """Render a share from 0 to 1 in percent."""
    percent = 100 * value
    return f"{percent:.1f} %" if percent >= 1 or not percent else f"{_small(percent)} %"


def times(ratio: float) -> str:
    """Render a ratio: 0.43×, 0.00026×, 153×."""
    if abs(ratio) >= 0.1:
        return f"{ratio:.0f}×" if ratio >= 100 else f"{ratio:.2f}×"
    return f"{_small(ratio)}×"


def duration(s: float) -> str:
    """Render seconds: steps in milliseconds, whole cases in minutes and hours."""
    if s < 1:
        return f"{number(1000 * s)} ms"
    return f"{s:.2f} s" if s < 10 else seconds(s)


def points(difference: float) -> str:
    """Render a difference of two shares in percentage points, always with its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def _small(value: float) -> str:
    """Three significant digits without exponent."""
    if not value:
        return "0"
    digits = len(f"{1 / abs(value):.0f}") + 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


_BY_UNIT: dict[str, Callable[[float], str]] = {
    "bytes": size, "count": count, "per_s": number, "share": share, "ratio": times, "s": duration,
    "nats": lambda nats: f"{nats:.4f}",
}  # fmt: skip


def text(quantity: Quantity, value: float) -> str:
    """Render a value of a quantity in its unit."""
    return _BY_UNIT[quantity.unit](value)


def mean_and_range(quantity: Quantity, values: Sequence[float]) -> str:
    """Render launches as mean (lowest–highest); equal ones as one number."""
    mean = text(quantity, sum(values) / len(values))
    low, high = text(quantity, min(values)), text(quantity, max(values))
    return mean if low == high else f"{mean} ({low}–{high})"


class Notes:
    """Footnotes of one table: each distinct reason once, numbered as it first appears."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def dash(self, reason: str) -> str:
        """A dash that points to its reason."""
        return DASH + self.mark(reason)

    def mark(self, reason: str) -> str:
        """The superscript number of a reason."""
        return str(self._numbers.setdefault(reason, len(self._numbers) + 1)).translate(_SUPERSCRIPT)

    def lines(self) -> list[str]:
        """Each reason behind its number, in order."""
        return [f"{str(n).translate(_SUPERSCRIPT)} {reason}" for reason, n in self._numbers.items()]
