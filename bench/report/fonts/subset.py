"""Make the Chinese subset font of the figures from Debian's package fonts-noto-cjk.

    python bench/report/fonts/subset.py /usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc

Needs fontTools, which the reports themselves do not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTCollection

FAMILY = "ftbench Sans SC"
TARGET = Path(__file__).with_name("ftbench-sans-sc.otf")
SIMPLIFIED_CHINESE = "Noto Sans CJK SC"


def characters() -> set[int]:
    """Code points kept: ASCII, Latin-1, the punctuation and level-1 characters of GB2312, and the units' signs."""
    kept = set(range(0x20, 0x7F)) | set(range(0xA0, 0x100))
    rows = [*range(0xA1, 0xA4), *range(0xB0, 0xD8)]  # punctuation, signs, full width; then level 1
    for row in rows:
        for column in range(0xA1, 0xFF):
            try:
                kept.add(ord(bytes([row, column]).decode("gb2312")))
            except UnicodeDecodeError:  # the last row of level 1 is not full
                continue
    return kept | {ord(sign) for sign in "–—…−×±≤≥≈→←↑↓·•²³¹⁰⁴⁵⁶⁷⁸⁹μ溢"}


def main(collection: Path) -> None:
    """Write the subset beside this script.

    Args:
        collection: NotoSansCJK-Regular.ttc of the Debian package.
    """
    fonts = TTCollection(collection).fonts
    font = next(f for f in fonts if f["name"].getDebugName(1) == SIMPLIFIED_CHINESE)
    options = Options(desubroutinize=False, hinting=False, layout_features=[], notdef_outline=True)
    options.name_IDs, options.name_languages = [0, 1, 2, 4, 6, 13, 14], [0x409]
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=characters())
    subsetter.subset(font)
    # Another family name, so that a system's full Noto is never mistaken for this subset.
    for name_id, text in ((1, FAMILY), (4, FAMILY), (6, FAMILY.replace(" ", "-"))):
        font["name"].setName(text, name_id, 3, 1, 0x409)
    font["CFF "].cff.topDictIndex[0].FullName = FAMILY
    font["CFF "].cff.topDictIndex[0].FamilyName = FAMILY
    font.save(TARGET)
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes, {len(font.getBestCmap())} characters")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
