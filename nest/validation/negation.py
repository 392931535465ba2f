"""What free text denies: a name behind "no" or before "off" is not what ran."""

from __future__ import annotations

import re
from functools import cache

#: What a text denies, up to the end of the clause: "no X", "not X", "without X",
#: "w/o X", "instead of X", "rather than X".
_BEFORE = (
    r"(?<![^\W_])(?:no|not|non|without|w/o|instead of|rather than)[-\s_]+"
    r"[^\s,;()+](?:(?!\bbut\b|\bwith\b|\.\s)[^,;()+])*"
)

#: The word that a text switches off: "X off", "X is disabled", "X=0", "X: false".
_BEHIND = (
    r"[^\s,;()+=:]+(?:\s*[=:]\s*(?:0(?![\d.])|(?:false|off|none|no|disabled)\b)"
    r"|(?:\s+(?:is|was|are|were|turned|switched))*[-\s_]+(?:off|disabled|false)\b)"
)


@cache
def affirmed(text: str) -> str:
    """Return a text without what it denies."""
    for pattern in (_BEFORE, _BEHIND):
        text = re.sub(pattern, " ", text, flags=re.IGNORECASE)
    return text


def says(pattern: str, text: str) -> bool | None:
    """Return whether a text affirms a pattern or denies it; None where it is silent.

    Upper or lower case. A text that does both affirms it.
    """
    if re.search(pattern, affirmed(text), re.IGNORECASE):
        return True
    return False if re.search(pattern, text, re.IGNORECASE) else None
