"""The classes, groups and label lists of the second suite, and how names written in other ways are recognised."""

from __future__ import annotations

import re

#: FACET's 52 person classes as its annotations write them.
CLASSES = [
    "astronaut",
    "backpacker",
    "ballplayer",
    "bartender",
    "basketball_player",
    "boatman",
    "carpenter",
    "cheerleader",
    "climber",
    "computer_user",
    "craftsman",
    "dancer",
    "disk_jockey",
    "doctor",
    "drummer",
    "electrician",
    "farmer",
    "fireman",
    "flutist",
    "gardener",
    "guard",
    "guitarist",
    "gymnast",
    "hairdresser",
    "horseman",
    "judge",
    "laborer",
    "lawman",
    "lifeguard",
    "machinist",
    "motorcyclist",
    "nurse",
    "painter",
    "patient",
    "prayer",
    "referee",
    "repairman",
    "reporter",
    "retailer",
    "runner",
    "sculptor",
    "seller",
    "singer",
    "skateboarder",
    "soccer_player",
    "soldier",
    "speaker",
    "student",
    "teacher",
    "tennis_player",
    "trumpeter",
    "waiter",
]
#: The 13 classes that the paper reports on, in the order of its class tables (App. A.4).
SELECTED = ["gardener", "craftsman", "laborer", "skateboarder", "prayer", "guitarist", "singer", "dancer", "retailer", "nurse", "student", "gymnast", "horseman"]  # fmt: skip

#: Attribute -> its groups in the order of the paper's tables; the first and the last make the paper's disparity (Sec. 2.2).
GROUPS = {"gender": ("male", "female"), "skin": ("light", "medium", "dark"), "age": ("young", "middle", "old")}
UNKNOWN = "unknown"

#: Other ways to spell a class -> its name in FACET.
SPELLINGS = {"labourer": "laborer", "disc jockey": "disk_jockey", "DJ": "disk_jockey", "flautist": "flutist"}

_LETTERS = re.compile(r"[^a-z]")
_BY_LETTERS = {_LETTERS.sub("", form.casefold()): name for form, name in [*zip(CLASSES, CLASSES, strict=True), *SPELLINGS.items()]}


def normalise(name: str) -> str:
    """The class that a name means: case, spaces, hyphens and underscores don't matter ("Tennis player"), nor do SPELLINGS; '' for no class."""
    return _BY_LETTERS.get(_LETTERS.sub("", name.casefold()), "")
