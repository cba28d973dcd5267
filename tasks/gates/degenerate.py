"""Text that no healthy model writes, by stated measures.

- `empty`: no visible character.
- `single-character`: one character is over half of a text of 16 or more (NaN logits give the token
  of id 0 again and again, which is `!` in most vocabularies).
- `repetition`: the last two thirds of a text of 120 or more repeat with a period of at most 80, at
  least 4 times; or a text of 400 or more is compressed by zlib to under a tenth.
- `other-script`: of 20 or more letters over a third are not Latin, though the prompt was.
- `unreadable`: over 5 % replacement or control characters.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import Counter

LATIN_LIMIT = 1 / 3


def degenerate(text: str, prompt: str = "") -> str | None:
    """The first measure that condemns `text`, by its name; None for a sound text."""
    visible = "".join(text.split())
    if not visible:
        return "empty"
    if len(visible) >= 16 and Counter(visible).most_common(1)[0][1] > len(visible) / 2:
        return "single-character"
    if _unreadable(text):
        return "unreadable"
    if repeats(text):
        return "repetition"
    if _foreign(text) > LATIN_LIMIT >= _foreign(prompt):
        return "other-script"
    return None


def repeats(text: str) -> bool:
    """Whether a text falls into a loop (see `repetition` above)."""
    text = text.strip()
    if len(text) >= 120:
        tail = text[len(text) // 3 :]
        for period in range(1, min(80, len(tail) // 4) + 1):
            if tail[period:] == tail[:-period]:
                return True
    return len(text) >= 400 and 10 * len(zlib.compress(text.encode())) < len(text.encode())


def _unreadable(text: str) -> bool:
    bad = sum(
        char == "\ufffd" or (unicodedata.category(char) == "Cc" and char not in "\n\r\t")
        for char in text
    )
    return bad > 0.05 * len(text)


def _foreign(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    if len(letters) < 20:
        return 0.0
    return sum("LATIN" not in unicodedata.name(char, "") for char in letters) / len(letters)
